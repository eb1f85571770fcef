//! The bill of materials, in the JSON of CycloneDX 1.5.

use anyhow::Result;
use serde_json::{Value, json};

use crate::dependencies::{BINARIES, Crate, CrateId};

/// Lists Invar and all crates in its binaries. The document has no time and no serial number, so that two
/// builds of one commit write one document.
pub(crate) fn json(version: &str, crates: &[Crate]) -> Result<String> {
    let root = format!("pkg:generic/invar@{version}");
    let roots: Vec<String> = crates
        .iter()
        .filter(|found| BINARIES.contains(&found.id.name.as_str()))
        .map(|found| purl(&found.id))
        .collect();
    let mut dependencies = vec![json!({"ref": root, "dependsOn": roots})];
    dependencies.extend(crates.iter().map(|found| {
        let names: Vec<String> = found.dependencies.iter().map(purl).collect();
        json!({"ref": purl(&found.id), "dependsOn": names})
    }));
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "invar",
                "version": version,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
            },
        },
        "components": crates.iter().map(component).collect::<Vec<_>>(),
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn component(found: &Crate) -> Value {
    let purl = purl(&found.id);
    // Old manifests write `MIT/Apache-2.0`, which is no SPDX expression.
    let licence = found.licence.replace('/', " OR ");
    let mut component = json!({
        "type": "library",
        "bom-ref": purl,
        "purl": purl,
        "name": found.id.name,
        "version": found.id.version,
        "scope": "required",
        "licenses": [{"expression": licence}],
    });
    if let Some(checksum) = &found.checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if !found.repository.is_empty() {
        component["externalReferences"] = json!([{"type": "vcs", "url": found.repository}]);
    }
    component
}

/// The name of a crate in a bill of materials (Package URL).
fn purl(id: &CrateId) -> String {
    format!("pkg:cargo/{}@{}", id.name, id.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dependency_is_a_component() {
        let id = |name: &str| CrateId { name: name.to_owned(), version: "1.0.0".to_owned() };
        let found = |name: &str, dependencies| Crate {
            id: id(name),
            licence: "MIT/Apache-2.0".to_owned(),
            repository: String::new(),
            directory: "/".into(),
            is_own: false,
            checksum: Some("00ff".to_owned()),
            dependencies,
        };
        let crates = [found("invar-cli", vec![id("log")]), found("log", vec![])];
        let document: Value = serde_json::from_str(&json("0.1.0", &crates).unwrap()).unwrap();
        let components = document["components"].as_array().unwrap();
        let refs: Vec<&Value> = components.iter().map(|component| &component["bom-ref"]).collect();
        for dependency in document["dependencies"].as_array().unwrap() {
            let names = dependency["dependsOn"].as_array().unwrap();
            assert!(names.iter().all(|name| refs.contains(&name)), "{dependency}");
        }
        assert_eq!(document["dependencies"][0]["dependsOn"][0], "pkg:cargo/invar-cli@1.0.0");
        assert_eq!(components[1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(components[1]["hashes"][0]["content"], "00ff");
    }
}
