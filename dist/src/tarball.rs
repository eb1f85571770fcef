//! A tarball for any Linux with glibc. Its content is laid out as below `/usr/local`.

use anyhow::Result;

use crate::archive::tar_gz;
use crate::product::{Layout, Product};

const LAYOUT: Layout =
    Layout { prefix: "", libraries: "lib", zsh: "share/zsh/site-functions", gzip_manuals: false };

/// The tarball's file name and its content.
pub(crate) fn build(product: &Product) -> Result<(String, Vec<u8>)> {
    let name = format!("invar-{}-x86_64-linux", product.version);
    let bytes = tar_gz(&product.tree(&LAYOUT)?, &format!("{name}/"), product.time)?;
    Ok((format!("{name}.tar.gz"), bytes))
}
