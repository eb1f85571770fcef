//! Checks the manifests of packages.

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

/// Checks a package.
pub(super) fn check(package: &Package) -> Vec<String> {
    let name = &package.name;
    let mut findings = Vec::new();
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

    fn package(name: &str, dependency: &str) -> Package {
        Package {
            name: name.to_owned(),
            description: "What it is".to_owned(),
            public: true,
            dependencies: vec![dependency.to_owned()],
        }
    }

    #[test]
    fn public_packages_have_a_description() {
        let named = package("invar", "rustix");
        assert!(check(&named).is_empty());
        let nameless = Package { description: String::new(), ..named };
        assert_eq!(check(&nameless).len(), 1);
        assert!(check(&Package { public: false, ..nameless }).is_empty());
    }

    #[test]
    fn core_depends_on_what_needs_no_allocator() {
        assert!(check(&package("invar-core", "heapless")).is_empty());
        assert_eq!(check(&package("invar-core", "rustix")).len(), 1);
    }
}
