//! Finds the types, traits and errors that the signature of a public item mentions.

use serde_json::Value;

use super::docs::{Docs, inner};
use super::surface::Item;

/// A type or trait that a signature mentions.
pub(super) struct Used {
    pub(super) id: u64,
    /// The part of the item that mentions the type.
    pub(super) place: String,
}

/// The types and traits that the public parts of an item mention. The associated types of a trait's
/// `impl` are left out: users name them through the trait.
pub(super) fn used(docs: &Docs, item: &Item) -> Vec<Used> {
    let mut used = Vec::new();
    for (place, part) in parts(docs, item) {
        let mut ids = Vec::new();
        mentioned(&part, &mut ids);
        used.extend(ids.into_iter().map(|id| Used { id, place: place.clone() }));
    }
    used
}

/// The functions of an item that return a `Result`, each with the path of its error type.
pub(super) fn errors(docs: &Docs, item: &Item) -> Vec<(String, String)> {
    let mut errors = Vec::new();
    for (place, part) in parts(docs, item) {
        let output = &part["function"]["sig"]["output"]["resolved_path"];
        let name = output["path"].as_str().unwrap_or_default();
        if name.rsplit("::").next() != Some("Result") {
            continue;
        }
        let error = &output["args"]["angle_bracketed"]["args"][1]["type"]["resolved_path"];
        let path = error["id"].as_u64().and_then(|id| docs.path(&item.krate, id));
        let error = path.map_or_else(|| format!("that of {name}"), |path| path.name);
        errors.push((format!("{}::{place}", item.public_path), error));
    }
    errors
}

/// The parts of an item that users see. Each part is a name and rustdoc's description.
fn parts(docs: &Docs, item: &Item) -> Vec<(String, Value)> {
    let mut parts = Vec::new();
    let Some((kind, inner)) = docs.item(&item.krate, item.id).and_then(inner) else { return parts };
    let add = |parts: &mut Vec<_>, ids: &Value, all: bool| {
        for id in ids.as_array().into_iter().flatten().filter_map(Value::as_u64) {
            add_member(docs, &item.krate, id, all, parts);
        }
    };
    // An alias gives its target a name, so users can name the target by the alias.
    if kind == "type_alias" {
        return parts;
    }
    parts.push(("its generics".to_owned(), inner["generics"].clone()));
    match kind {
        "struct" => {
            add(&mut parts, &inner["kind"]["plain"]["fields"], false);
            add(&mut parts, &inner["kind"]["tuple"], false);
        }
        "enum" => add(&mut parts, &inner["variants"], true),
        "trait" => {
            parts.push(("its bounds".to_owned(), inner["bounds"].clone()));
            add(&mut parts, &inner["items"], true);
        }
        _ => add_member(docs, &item.krate, item.id, true, &mut parts),
    }
    let impls =
        [&inner["impls"], &inner["implementations"]].into_iter().filter_map(Value::as_array);
    for id in impls.flatten().filter_map(Value::as_u64) {
        let Some(block) = docs.item(&item.krate, id) else { continue };
        let block = &block["inner"]["impl"];
        if block["is_synthetic"] == true || !block["blanket_impl"].is_null() {
            continue;
        }
        match block["trait"]["path"].as_str() {
            None => add(&mut parts, &block["items"], false),
            Some(name) => {
                let place = format!("impl {name}");
                let described = [&block["trait"], &block["for"], &block["generics"]];
                let described = described.into_iter().cloned().collect();
                parts.push((place, Value::Array(described)));
            }
        }
    }
    parts
}

/// Adds a field, variant or function to `parts` if the member is public or `all` is set.
fn add_member(docs: &Docs, krate: &str, id: u64, all: bool, parts: &mut Vec<(String, Value)>) {
    let Some(member) = docs.item(krate, id) else { return };
    if !all && member["visibility"] != "public" {
        return;
    }
    let name = member["name"].as_str().unwrap_or_default();
    parts.push((name.to_owned(), member["inner"].clone()));
    let variant = &member["inner"]["variant"]["kind"];
    for fields in [&variant["tuple"], &variant["struct"]["fields"]] {
        for field in fields.as_array().into_iter().flatten().filter_map(Value::as_u64) {
            add_member(docs, krate, field, true, parts);
        }
    }
}

/// Collects the ids of all types and traits in a description.
fn mentioned(part: &Value, ids: &mut Vec<u64>) {
    match part {
        Value::Object(fields) => {
            let path = fields.get("resolved_path").or_else(|| fields.get("trait"));
            ids.extend(path.and_then(|path| path["id"].as_u64()));
            // A trait of an `impl` has its path and id in this object, without a `resolved_path` around
            // them.
            if fields.contains_key("path") && fields.contains_key("args") {
                ids.extend(fields.get("id").and_then(Value::as_u64));
            }
            fields.values().for_each(|value| mentioned(value, ids));
        }
        Value::Array(values) => values.iter().for_each(|value| mentioned(value, ids)),
        _ => {}
    }
}
