//! The content of packages, with small programs in place of the command and the plugin.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read};
use std::process::Command;

use flate2::read::GzDecoder;

use crate::elf::Needs;
use crate::product::{PLUGIN, Product, VERBS};
use crate::{deb, packages, rpm_package, tarball, texts, wheel};

const TIME: u64 = 1_700_000_000;
const MANUALS: [&str; 6] =
    ["invar", "invar-coll", "invar-devices", "invar-env", "invar-perf", "invar-settings"];

/// A file in an archive: mode, owner, time and content.
#[derive(Debug)]
struct Entry {
    mode: u32,
    owner: (u64, u64),
    time: u64,
    content: Vec<u8>,
}

type Entries = BTreeMap<String, Entry>;

fn product() -> Product {
    let folder = tempfile::tempdir().unwrap();
    let (code, program) = (folder.path().join("program.c"), folder.path().join("program"));
    fs::write(&code, "int main(void) { return 0; }").unwrap();
    assert!(Command::new("cc").arg("-o").arg(&program).arg(&code).status().unwrap().success());
    let binary = fs::read(&program).unwrap();
    let mut needs = Needs::default();
    needs.add(&binary).unwrap();
    needs.check_libraries().unwrap();
    let text = |name: &str| (name.to_owned(), format!("the text of {name}").into_bytes());
    Product {
        version: "1.2.3".to_owned(),
        time: TIME,
        homepage: "https://invar.example".to_owned(),
        command: binary.clone(),
        plugin: binary.clone(),
        module: binary.clone(),
        verbs: binary,
        needs,
        texts: ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY-LICENSES.txt", "install.md"]
            .map(text)
            .to_vec(),
        definition: invar_cli::definition(),
    }
}

fn untarred(bytes: &[u8]) -> Entries {
    let mut archive = tar::Archive::new(GzDecoder::new(bytes));
    let mut entries = Entries::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let header = entry.header().clone();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let (mode, time) = (header.mode().unwrap(), header.mtime().unwrap());
        let owner = (header.uid().unwrap(), header.gid().unwrap());
        entries.insert(path, Entry { mode, owner, time, content });
    }
    entries
}

/// The parts of a Debian package, by name.
fn parts(package: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = ar::Archive::new(package);
    let mut parts = BTreeMap::new();
    while let Some(entry) = archive.next_entry() {
        let mut entry = entry.unwrap();
        let name = String::from_utf8(entry.header().identifier().to_vec()).unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        parts.insert(name, content);
    }
    parts
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn unzipped(bytes: &[u8]) -> Entries {
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
    let mut entries = Entries::new();
    for index in 0..archive.len() {
        let mut file = archive.by_index(index).unwrap();
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        let mode = file.unix_mode().unwrap();
        entries.insert(
            file.name().unwrap().into_owned(),
            Entry { mode, owner: (0, 0), time: 0, content },
        );
    }
    entries
}

/// Fails unless the entries have the program at this path, for all to run.
fn assert_runs(entries: &Entries, path: &str, product: &Product) {
    let entry = entries.get(path).unwrap_or_else(|| panic!("{path} in {:?}", entries.keys()));
    assert_eq!((entry.mode & 0o777, &entry.content), (0o755, &product.command));
}

#[test]
fn each_link_of_a_page_leads_to_a_file_of_the_package_or_to_the_web() {
    let texts = texts::load(String::new()).unwrap();
    let has = |target: &str| {
        texts.iter().any(|(name, _)| name == target || name.starts_with(&format!("{target}/")))
    };
    assert!(has("install.md") && has("settings.md") && has("plots/trace.svg"));
    for (name, page) in texts.iter().filter(|(name, _)| name.ends_with(".md")) {
        for link in text(page).split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            let is_right = target.is_empty() || target.starts_with("https://") || has(target);
            assert!(is_right, "{name}: {target}");
        }
    }
}

#[test]
fn packing_twice_gives_the_same_bytes() {
    let product = product();
    assert!(packages(&product).unwrap() == packages(&product).unwrap());
}

#[test]
fn the_tarball_is_one_folder_laid_out_as_usr_local() {
    let product = product();
    let (name, bytes) = tarball::build(&product).unwrap();
    assert_eq!(name, "invar-1.2.3-x86_64-linux.tar.gz");
    let entries = untarred(&bytes);
    let folder = "invar-1.2.3-x86_64-linux/";
    assert!(entries.keys().all(|path| path.starts_with(folder)));
    assert!(entries.values().all(|entry| entry.owner == (0, 0) && entry.time == TIME));
    assert_runs(&entries, &format!("{folder}bin/invar"), &product);
    let has =
        |path: &str| assert!(!entries[&format!("{folder}{path}")].content.is_empty(), "{path}");
    has(&format!("lib/{PLUGIN}"));
    // Where `invar run` looks, from the folder of the command.
    has("lib/invar/libibverbs.so");
    MANUALS.iter().for_each(|name| has(&format!("share/man/man1/{name}.1")));
    has("share/bash-completion/completions/invar");
    has("share/fish/vendor_completions.d/invar.fish");
    has("share/zsh/site-functions/_invar");
    has("share/doc/invar/THIRD-PARTY-LICENSES.txt");
}

#[test]
fn the_debian_package_declares_what_the_binaries_need() {
    let product = product();
    let (name, bytes) = deb::build(&product).unwrap();
    assert_eq!(name, "invar_1.2.3_amd64.deb");
    let parts = parts(&bytes);
    assert_eq!(parts["debian-binary"], b"2.0\n");
    let control = untarred(&parts["control.tar.gz"]);
    let fields = text(&control["./control"].content);
    let glibc = product.needs.glibc().unwrap();
    let depends = format!("\nDepends: libc6 (>= {}.{}), libgcc-s1\n", glibc.major, glibc.minor);
    assert!(fields.contains(&depends), "{fields}");
    assert!(fields.contains("\nRecommends: libibverbs1, ibverbs-providers\n"), "{fields}");
    // A blank line would end the description.
    assert!(fields.starts_with("Package: invar\n") && !fields.contains("\n\n"), "{fields}");
    assert_eq!(control["./triggers"].content, b"activate-noawait ldconfig\n");
}

#[test]
fn the_debian_package_puts_the_plugin_where_debians_loader_looks() {
    let product = product();
    let entries = untarred(&parts(&deb::build(&product).unwrap().1)["data.tar.gz"]);
    assert_runs(&entries, "./usr/bin/invar", &product);
    let plugin = &entries[&format!("./usr/lib/x86_64-linux-gnu/{PLUGIN}")];
    assert_eq!((plugin.mode, plugin.owner, plugin.time), (0o644, (0, 0), TIME));
    for name in MANUALS {
        let page = &entries[&format!("./usr/share/man/man1/{name}.1.gz")].content;
        let mut roff = String::new();
        GzDecoder::new(&page[..]).read_to_string(&mut roff).unwrap();
        assert!(roff.contains(&format!(".TH {name} 1")), "{roff}");
    }
    assert!(entries.contains_key("./usr/lib/invar/libibverbs.so"));
    assert!(entries.contains_key("./usr/share/doc/invar/copyright"));
    assert!(entries.contains_key("./usr/share/zsh/vendor-completions/_invar"));
}

#[test]
fn the_rpm_requires_each_version_of_a_symbol() {
    let product = product();
    let (name, bytes) = rpm_package::build(&product).unwrap();
    assert_eq!(name, "invar-1.2.3-1.x86_64.rpm");
    let package = rpm::Package::parse(&mut &bytes[..]).unwrap();
    let requires = package.metadata.get_requires().unwrap();
    for (library, version) in &product.needs.versions {
        let name = format!("{library}({version})(64bit)");
        assert!(requires.iter().any(|required| required.name == name), "{name}");
    }
    let recommends = package.metadata.get_recommends().unwrap();
    assert!(recommends.iter().any(|dependency| dependency.name == "libibverbs"));
    let files = package.metadata.get_file_entries().unwrap();
    let of = |path: &str| {
        let found = files.iter().find(|file| file.path().to_str() == Some(path));
        found.unwrap_or_else(|| panic!("no {path}"))
    };
    assert_eq!(of("/usr/bin/invar").mode().permissions(), 0o755);
    assert_eq!(of(&format!("/usr/lib64/{PLUGIN}")).mode().permissions(), 0o644);
    of("/usr/share/man/man1/invar-env.1.gz");
    // The package owns its own directories, but not those of the system.
    of("/usr/share/doc/invar");
    of("/usr/lib/invar");
    assert!(files.iter().all(|file| file.path().to_str() != Some("/usr/bin")));
}

#[test]
fn the_wheel_says_which_glibc_it_needs_and_lists_its_files() {
    let product = product();
    let (name, bytes) = wheel::build(&product).unwrap();
    let glibc = product.needs.glibc().unwrap();
    let tag = format!("cp39-abi3-manylinux_{}_{}_x86_64", glibc.major, glibc.minor);
    assert_eq!(name, format!("invar-1.2.3-{tag}.whl"));
    let entries = unzipped(&bytes);
    assert_runs(&entries, "invar/bin/invar", &product);
    // Pip lets no other kind of file be executable.
    assert_eq!(entries["invar/bin/invar"].mode & 0o170_000, 0o100_000);
    assert_eq!(entries[&format!("invar/{PLUGIN}")].content, product.plugin);
    assert_eq!(entries["invar/_invar.abi3.so"].content, product.module);
    // Where `invar run` looks, from the folder of the command.
    assert_eq!(entries[&format!("invar/{VERBS}")].content, product.verbs);
    // `pip install --target` would lose the rest.
    let is_moved = |path: &str| path.starts_with("invar/") || path.contains(".dist-info/");
    assert!(entries.keys().all(|path| is_moved(path)), "{:?}", entries.keys());
    for file in fs::read_dir("../python/invar").unwrap().map(|file| file.unwrap()) {
        let name = file.file_name().into_string().unwrap();
        assert!(entries.contains_key(&format!("invar/{name}")), "{name} is not in the wheel");
    }
    let of = |name: &str| text(&entries[&format!("invar-1.2.3.dist-info/{name}")].content);
    assert_eq!(of("entry_points.txt"), "[console_scripts]\ninvar = invar.__main__:main\n");
    assert!(of("WHEEL").contains(&format!("\nTag: {tag}\n")));
    assert!(of("METADATA").contains("\nRequires-Python: >=3.9\n"));
    assert!(of("METADATA").contains("\nLicense-File: LICENSE-MIT\n"));
    let listed: Vec<&str> =
        of("RECORD").lines().map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(listed.len(), entries.len());
    assert!(entries.keys().all(|path| listed.contains(&path.as_str())), "{listed:?}");
    // The SHA-256 of the file, as RECORD writes it.
    assert!(of("RECORD").contains("licenses/LICENSE-MIT,sha256="), "{}", of("RECORD"));
}
