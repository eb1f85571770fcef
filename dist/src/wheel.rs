//! A wheel: the archive that pip installs. Its layout is that of Python's "Binary distribution format".

use std::io::{Cursor, Write};

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac_sha256::Hash;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use crate::elf::Needs;
use crate::product::{DESCRIPTION, LICENCE, PLUGIN, Product, SUMMARY, VERBS};
use crate::tree::{File, Tree};

/// The package's files in Python.
const FILES: [(&str, &str); 5] = [
    ("__init__.py", include_str!("../../python/invar/__init__.py")),
    ("__main__.py", include_str!("../../python/invar/__main__.py")),
    ("_invar.pyi", include_str!("../../python/invar/_invar.pyi")),
    ("torch.py", include_str!("../../python/invar/torch.py")),
    ("py.typed", include_str!("../../python/invar/py.typed")),
];
/// The script for which pip makes a file in the folder of scripts.
const ENTRY_POINTS: &str = "[console_scripts]\ninvar = invar.__main__:main\n";
/// The native module, under the name by which every CPython finds it.
const MODULE: &str = "_invar.abi3.so";

/// The wheel's file name and its content.
pub(crate) fn build(product: &Product) -> Result<(String, Vec<u8>)> {
    let version = &product.version;
    let mut needs = Needs::default();
    for binary in [&product.command, &product.plugin, &product.module, &product.verbs] {
        needs.add(binary)?;
    }
    needs.check_libraries()?;
    let glibc = needs.glibc()?;
    let tag = format!("cp39-abi3-manylinux_{}_{}_x86_64", glibc.major, glibc.minor);
    let mut tree = Tree::default();
    for (name, text) in FILES {
        tree.add_data(format!("invar/{name}"), text)?;
    }
    tree.add_data(format!("invar/{MODULE}"), product.module.clone())?;
    tree.add_data(format!("invar/{PLUGIN}"), product.plugin.clone())?;
    // `pip install --target` moves packages alone. So the package has the command, and the library where the command
    // looks for it.
    let command = File { content: product.command.clone(), executable: true };
    tree.add("invar/bin/invar", command)?;
    tree.add_data(format!("invar/{VERBS}"), product.verbs.clone())?;
    let info = format!("invar-{version}.dist-info");
    tree.add_data(format!("{info}/entry_points.txt"), ENTRY_POINTS)?;
    let licences = product.texts.iter().filter(|(name, _)| name.contains("LICENSE"));
    let mut names = Vec::new();
    for (name, text) in licences {
        tree.add_data(format!("{info}/licenses/{name}"), text.clone())?;
        names.push(name.as_str());
    }
    tree.add_data(format!("{info}/METADATA"), metadata(product, &names))?;
    let wheel = format!(
        "Wheel-Version: 1.0\nGenerator: invar-dist ({version})\nRoot-Is-Purelib: false\nTag: {tag}\n"
    );
    tree.add_data(format!("{info}/WHEEL"), wheel)?;
    let record = format!("{info}/RECORD");
    tree.add_data(&record, listed(&tree, &record))?;
    Ok((format!("invar-{version}-{tag}.whl"), zipped(&tree)?))
}

fn metadata(product: &Product, licences: &[&str]) -> String {
    let files: String = licences.iter().map(|name| format!("License-File: {name}\n")).collect();
    format!(
        "Metadata-Version: 2.4\n\
         Name: invar\n\
         Version: {}\n\
         Summary: {SUMMARY}\n\
         License-Expression: {LICENCE}\n\
         {files}\
         Project-URL: Homepage, {}\n\
         Classifier: Operating System :: POSIX :: Linux\n\
         Classifier: Programming Language :: Python :: Implementation :: CPython\n\
         Classifier: Typing :: Typed\n\
         Requires-Python: >=3.9\n\
         Description-Content-Type: text/plain\n\
         \n\
         {DESCRIPTION}\n",
        product.version, product.homepage
    )
}

/// The wheel's list of files with hashes and lengths. The list names itself without them.
fn listed(tree: &Tree, record: &str) -> String {
    let line = |(path, file): (&str, &File)| {
        let hash = URL_SAFE_NO_PAD.encode(Hash::hash(&file.content));
        format!("{path},sha256={hash},{}\n", file.content.len())
    };
    tree.files().map(line).collect::<String>() + &format!("{record},,\n")
}

/// A zip archive. Its files have the oldest time that the format knows.
fn zipped(tree: &Tree) -> Result<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, file) in tree.files() {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(9))
            .last_modified_time(DateTime::default())
            .unix_permissions(file.mode());
        archive.start_file(path, options)?;
        archive.write_all(&file.content)?;
    }
    Ok(archive.finish()?.into_inner())
}
