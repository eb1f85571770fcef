//! Checks the manifests of packages.

use std::fs;
use std::path::Path;

use crate::workspace::Package;

/// The crates that invar-core may depend on. Each works without std and alloc.
const CORE_DEPENDENCIES: [&str; 10] = [
    "bitflags",
    "crc32fast",
    "defmt",
    "heapless",
    "hmac-sha256",
    "log",
    "spin",
    "static_assertions",
    "thiserror",
    "zerocopy",
];

/// The licences. A package that may be published has a copy of each in its folder: some systems check symbolic
/// links out as files that hold a path.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

pub(super) fn check(root: &Path, package: &Package) -> Vec<String> {
    let name = &package.name;
    let mut findings = Vec::new();
    if package.public {
        for licence in LICENCES {
            let text = |folder: &Path| fs::read(folder.join(licence)).ok();
            if text(root).is_none() || package.manifest.parent().and_then(text) != text(root) {
                findings.push(format!("{name}: has no copy of {licence}"));
            }
        }
    }
    if package.public && package.description.is_empty() {
        findings.push(format!("{name}: a package that may be published has a description"));
    }
    if name == "invar-core" {
        let foreign = |dependency: &&String| !CORE_DEPENDENCIES.contains(&dependency.as_str());
        for dependency in package.dependencies.iter().filter(foreign) {
            findings.push(format!("{name}: depends on {dependency}; see CORE_DEPENDENCIES"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folder of the workspace, which has the licences.
    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    fn package(name: &str, dependency: &str) -> Package {
        Package {
            name: name.to_owned(),
            manifest: root().join("Cargo.toml"),
            description: "What it is".to_owned(),
            public: true,
            dependencies: vec![dependency.to_owned()],
        }
    }

    #[test]
    fn public_packages_have_a_description() {
        let named = package("invar", "rustix");
        assert!(check(root(), &named).is_empty());
        let nameless = Package { description: String::new(), ..named };
        assert_eq!(check(root(), &nameless).len(), 1);
        assert!(check(root(), &Package { public: false, ..nameless }).is_empty());
    }

    #[test]
    fn public_packages_have_the_licences() {
        let manifest = root().join("xtask/Cargo.toml");
        let bare = Package { manifest, ..package("invar", "rustix") };
        assert_eq!(check(root(), &bare).len(), 2);
        assert!(check(root(), &Package { public: false, ..bare }).is_empty());
    }

    #[test]
    fn core_depends_on_what_needs_no_allocator() {
        assert!(check(root(), &package("invar-core", "heapless")).is_empty());
        assert_eq!(check(root(), &package("invar-core", "rustix")).len(), 1);
    }
}
