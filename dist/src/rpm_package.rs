//! A package for Fedora, Red Hat Enterprise Linux and their relatives.

use anyhow::{Context, Result};
use rpm::{BuildConfig, CompressionWithLevel, Dependency, FileOptions, PackageBuilder};

use crate::product::{DESCRIPTION, LICENCE, Layout, PLUGIN, Product, SUMMARY};

const LAYOUT: Layout = Layout {
    prefix: "usr/",
    libraries: "lib64",
    zsh: "share/zsh/site-functions",
    gzip_manuals: true,
};
/// Directories that no other package may have brought. The package owns them too, so that none is left
/// when it is removed.
const SHARED_DIRECTORIES: [&str; 3] =
    ["usr/share/bash-completion", "usr/share/fish", "usr/share/zsh"];
const DOC_DIRECTORY: &str = "usr/share/doc/invar";
/// Directories that only this package has.
const OWN_DIRECTORIES: [&str; 2] = [DOC_DIRECTORY, "usr/lib/invar"];

/// The package's file name and its content.
pub(crate) fn build(product: &Product) -> Result<(String, Vec<u8>)> {
    let tree = product.tree(&LAYOUT)?;
    let time: u32 = product.time.try_into().context("a time that RPM can hold ends in 2106")?;
    let config = BuildConfig::v4().source_date(time).compression(CompressionWithLevel::Gzip(9));
    let mut package = PackageBuilder::new("invar", &product.version, LICENCE, "x86_64", SUMMARY);
    package.using_config(config).release("1").description(DESCRIPTION).url(&*product.homepage);
    package.build_host("localhost").cookie(format!("invar {}", product.version));
    let owned = |directory: &&str| {
        let below = |top: &&str| directory.strip_prefix(*top).is_some_and(is_below);
        OWN_DIRECTORIES.iter().chain(&SHARED_DIRECTORIES).any(below)
    };
    for directory in tree.directories().into_iter().filter(owned) {
        let options = FileOptions::dir(format!("/{directory}")).permissions(0o755);
        package.with_dir_entry(options)?;
    }
    for (path, file) in tree.files() {
        let mode = file.mode().try_into().context("a mode has 12 bits")?;
        let mut options = FileOptions::new(format!("/{path}")).permissions(mode);
        if path.contains("LICENSE") {
            options = options.license();
        } else if path.starts_with("usr/share/man/") || path.starts_with(DOC_DIRECTORY) {
            options = options.doc();
        }
        package.with_file_contents(file.content.clone(), options)?;
    }
    for capability in capabilities(product) {
        package.requires(Dependency::any(capability));
    }
    package.requires(Dependency::any("rtld(GNU_HASH)"));
    package.provides(Dependency::any(format!("{PLUGIN}()(64bit)")));
    package.recommends(Dependency::any("libibverbs"));
    let mut bytes = Vec::new();
    package.build()?.write(&mut bytes)?;
    Ok((format!("invar-{}-1.x86_64.rpm", product.version), bytes))
}

/// Whether the rest of a path after its start is nothing, or a path below.
fn is_below(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

/// The names by which distributions' packages provide libraries and versions of their symbols.
fn capabilities(product: &Product) -> Vec<String> {
    let libraries = product.needs.libraries.iter().map(|library| format!("{library}()(64bit)"));
    let versions = product.needs.versions.iter();
    let versions = versions.map(|(library, version)| format!("{library}({version})(64bit)"));
    libraries.chain(versions).collect()
}
