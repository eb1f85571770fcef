//! A package for Debian and its relatives, as deb(5) describes it.

use anyhow::Result;

use crate::archive::tar_gz;
use crate::product::{DESCRIPTION, Layout, Product, SUMMARY};
use crate::tree::Tree;

const LAYOUT: Layout = Layout {
    prefix: "usr/",
    libraries: "lib/x86_64-linux-gnu",
    zsh: "share/zsh/vendor-completions",
    gzip_manuals: true,
};

/// The package's file name and its content.
pub(crate) fn build(product: &Product) -> Result<(String, Vec<u8>)> {
    let mut tree = product.tree(&LAYOUT)?;
    tree.add_data("usr/share/doc/invar/copyright", copyright(product))?;
    let mut control = Tree::default();
    control.add_data("control", control_file(product, &tree)?)?;
    // dpkg updates the loader's cache once for all packages that it installs.
    control.add_data("triggers", "activate-noawait ldconfig\n")?;
    let mut package = ar::Builder::new(Vec::new());
    for (name, content) in [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", tar_gz(&control, "./", product.time)?),
        ("data.tar.gz", tar_gz(&tree, "./", product.time)?),
    ] {
        let mut header = ar::Header::new(name.as_bytes().to_vec(), content.len().try_into()?);
        header.set_mtime(product.time);
        header.set_mode(0o100644);
        package.append(&header, &content[..])?;
    }
    let name = format!("invar_{}_amd64.deb", product.version);
    Ok((name, package.into_inner()?))
}

fn control_file(product: &Product, tree: &Tree) -> Result<String> {
    let glibc = product.needs.glibc()?;
    let description: String = DESCRIPTION.lines().map(|line| format!("\n {line}")).collect();
    Ok(format!(
        "Package: invar\n\
         Version: {version}\n\
         Architecture: amd64\n\
         Maintainer: The Invar authors <maintainers@invar.example>\n\
         Installed-Size: {kibibytes}\n\
         Depends: libc6 (>= {major}.{minor}), libgcc-s1\n\
         Recommends: libibverbs1, ibverbs-providers\n\
         Section: net\n\
         Priority: optional\n\
         Homepage: {homepage}\n\
         Description: {SUMMARY}{description}\n",
        version = product.version,
        kibibytes = tree.bytes().div_ceil(1024),
        major = glibc.major,
        minor = glibc.minor,
        homepage = product.homepage,
    ))
}

/// The file in which Debian's tools and people look for licences.
fn copyright(product: &Product) -> String {
    format!(
        "Invar, from {}\n\
         Copyright (c) The Invar authors\n\
         License: MIT or Apache-2.0, as you like.\n\
         \n\
         LICENSE-MIT beside this file has the text of the first licence, and\n\
         /usr/share/common-licenses/Apache-2.0 that of the second.\n\
         THIRD-PARTY-LICENSES.txt has the licences of the crates in the binaries.\n",
        product.homepage
    )
}
