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
        .map(|found| purl(&found.id, crates))
        .collect();
    let mut dependencies = vec![json!({"ref": root, "dependsOn": roots})];
    dependencies.extend(crates.iter().map(|found| {
        let names = found.dependencies.iter().map(|id| purl(id, crates)).collect::<Vec<_>>();
        json!({"ref": purl(&found.id, crates), "dependsOn": names})
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
        "components": crates.iter().map(|found| component(found, crates)).collect::<Vec<_>>(),
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn component(found: &Crate, crates: &[Crate]) -> Value {
    let purl = purl(&found.id, crates);
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

/// The name of a crate in a bill of materials (Package URL). In the registry the names of Invar's own crates
/// belong to others.
fn purl(id: &CrateId, crates: &[Crate]) -> String {
    let is_own = crates.iter().any(|found| found.is_own && found.id == *id);
    let kind = if is_own { "generic" } else { "cargo" };
    format!("pkg:{kind}/{}@{}", id.name, id.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dependency_is_a_component() {
        let id = |name: &str| CrateId { name: name.to_owned(), version: "1.0.0".to_owned() };
        let found = |name: &str, dependencies| Crate {
            is_own: name.starts_with("invar"),
            id: id(name),
            licence: "MIT/Apache-2.0".to_owned(),
            repository: String::new(),
            directory: "/".into(),
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
        assert_eq!(document["dependencies"][0]["dependsOn"][0], "pkg:generic/invar-cli@1.0.0");
        assert_eq!(components[1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(components[1]["hashes"][0]["content"], "00ff");
    }
}
