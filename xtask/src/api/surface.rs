//! Collects the items that users of a crate can name.

use std::collections::HashSet;

use serde_json::Value;

use super::docs::{Docs, inner};

/// All items that users of a crate can name.
#[derive(Default)]
pub(super) struct Surface {
    pub(super) items: Vec<Item>,
    /// The canonical paths of these items and modules.
    named: HashSet<String>,
    visited: HashSet<(String, u64)>,
}

/// An item other than a module.
pub(super) struct Item {
    pub(super) krate: String,
    pub(super) id: u64,
    /// A path by which users name the item.
    pub(super) public_path: String,
}

impl Surface {
    pub(super) fn of(docs: &Docs, krate: &str) -> Self {
        let mut surface = Surface::default();
        if let Some(root) = docs.root(krate) {
            surface.visit_module(docs, krate, root, krate);
        }
        surface
    }

    /// Whether users can name the item at the path `canonical`.
    pub(super) fn has(&self, canonical: &str) -> bool {
        self.named.contains(canonical)
    }

    fn visit_module(&mut self, docs: &Docs, krate: &str, id: u64, public_path: &str) {
        let Some((krate, id)) = docs.definition(krate, id) else { return };
        let items = docs.item(&krate, id).map(|item| &item["inner"]["module"]["items"]);
        for child in items.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64)
        {
            let Some(item) = docs.item(&krate, child) else { continue };
            if item["visibility"] != "public" {
                continue;
            }
            let used = &item["inner"]["use"];
            let Some(target) = used["id"].as_u64() else {
                let name = item["name"].as_str().unwrap_or_default();
                self.visit(docs, &krate, child, &format!("{public_path}::{name}"));
                continue;
            };
            if used["is_glob"] == true {
                self.visit_module(docs, &krate, target, public_path);
            } else {
                let name = used["name"].as_str().unwrap_or_default();
                self.visit(docs, &krate, target, &format!("{public_path}::{name}"));
            }
        }
    }

    fn visit(&mut self, docs: &Docs, krate: &str, id: u64, public_path: &str) {
        if let Some(path) = docs.path(krate, id) {
            self.named.insert(path.name);
        }
        // For a foreign crate, rustdoc's JSON has the path alone.
        let Some((krate, id)) = docs.definition(krate, id) else { return };
        if !self.visited.insert((krate.clone(), id)) {
            return;
        }
        match docs.item(&krate, id).and_then(inner) {
            Some(("module", _)) => self.visit_module(docs, &krate, id, public_path),
            _ => self.items.push(Item { krate, id, public_path: public_path.to_owned() }),
        }
    }
}
