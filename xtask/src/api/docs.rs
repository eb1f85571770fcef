//! Loads rustdoc's JSON and finds items in it.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// The rustdoc JSON of several crates.
pub(super) struct Docs {
    crates: HashMap<String, Value>,
    /// Maps an item's canonical path to its crate and its id.
    canonical: HashMap<String, (String, u64)>,
}

/// The path where an item is defined, and the crate that defines it.
pub(super) struct ItemPath {
    pub(super) name: String,
    krate: String,
}

impl ItemPath {
    /// Whether users need no re-export of the item. This holds for the standard library, and for
    /// `bitflags`, whose macro gives types their methods.
    pub(super) fn is_known(&self) -> bool {
        ["std", "core", "alloc", "bitflags"].contains(&self.krate.as_str())
    }
}

impl Docs {
    /// Reads the JSON files that rustdoc wrote for `packages`.
    pub(super) fn load(folder: &Path, packages: &[&str]) -> Result<Self> {
        let mut docs = Docs { crates: HashMap::new(), canonical: HashMap::new() };
        for package in packages {
            let krate = package.replace('-', "_");
            let file = folder.join(format!("{krate}.json"));
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let json: Value = serde_json::from_str(&text)?;
            for (id, path) in json["paths"].as_object().context("no paths")? {
                if path["crate_id"] == 0 {
                    docs.canonical.insert(joined(path), (krate.clone(), id.parse()?));
                }
            }
            docs.crates.insert(krate, json);
        }
        Ok(docs)
    }

    pub(super) fn root(&self, krate: &str) -> Option<u64> {
        self.crates.get(krate)?["root"].as_u64()
    }

    pub(super) fn item(&self, krate: &str, id: u64) -> Option<&Value> {
        self.crates.get(krate)?["index"].get(id.to_string())
    }

    /// The path of an item that the documentation of `krate` mentions by `id`.
    pub(super) fn path(&self, krate: &str, id: u64) -> Option<ItemPath> {
        let json = self.crates.get(krate)?;
        let path = json["paths"].get(id.to_string())?;
        let name = joined(path);
        let owner = match path["crate_id"].as_u64()? {
            0 => krate.to_owned(),
            other => json["external_crates"][other.to_string()]["name"].as_str()?.to_owned(),
        };
        Some(ItemPath { name, krate: owner })
    }

    /// The crate and the id under which rustdoc documents the item itself, not a re-export of it.
    pub(super) fn definition(&self, krate: &str, id: u64) -> Option<(String, u64)> {
        if self.item(krate, id).is_some() {
            return Some((krate.to_owned(), id));
        }
        self.canonical.get(&self.path(krate, id)?.name).cloned()
    }
}

/// The kind of an item, and rustdoc's description for that kind.
pub(super) fn inner(item: &Value) -> Option<(&str, &Value)> {
    item["inner"].as_object()?.iter().next().map(|(kind, inner)| (kind.as_str(), inner))
}

fn joined(path: &Value) -> String {
    let parts = path["path"].as_array().into_iter().flatten();
    parts.filter_map(Value::as_str).collect::<Vec<_>>().join("::")
}
