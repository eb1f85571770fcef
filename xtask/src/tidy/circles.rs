//! Checks that modules beside each other name each other in one direction only.
//!
//! A module counts together with the modules below it. A path counts for the module that defines the item,
//! however many re-exports lie between. Re-exports themselves do not count.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::source::Names;

/// Modules whose own paths do not count, each with the root of its crate: an error of the core names the
/// errors of all modules, and a handshake ends by making the comms that it was for.
const EXEMPT: [(&str, &str); 2] = [("core/src", "error"), ("core/src", "conn")];

/// More re-exports than any path passes through.
const REEXPORTS_MAX: usize = 16;

/// The names of the modules from the crate's root to a module.
type ModulePath = Vec<String>;

/// The modules of a crate, and the names in each.
type Modules = BTreeMap<ModulePath, Names>;

/// Describes the circles in all crates; `files` are paths in the repository and texts.
pub(super) fn check(files: &[(PathBuf, String)]) -> Vec<String> {
    let is_root = |path: &Path| path.ends_with("lib.rs") || path.ends_with("main.rs");
    let roots = files.iter().map(|(path, _)| path).filter(|path| is_root(path));
    let roots: BTreeSet<&Path> = roots.filter_map(|path| path.parent()).collect();
    let mut crates: BTreeMap<&Path, Modules> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| path.extension() == Some("rs".as_ref())) {
        let root = path.ancestors().skip(1).find(|folder| roots.contains(folder));
        let Some((root, inside)) =
            root.and_then(|root| Some((root, path.strip_prefix(root).ok()?)))
        else {
            continue;
        };
        let mut module: ModulePath =
            inside.with_extension("").iter().map(|name| name.to_string_lossy().into()).collect();
        if is_root(path) {
            module.clear();
        }
        // A file of `bin` is a crate of its own.
        if !module.iter().any(|name| name == "tests" || name == "bin") {
            crates.entry(root).or_default().insert(module, Names::of(text));
        }
    }
    crates.iter().flat_map(|(root, modules)| circles(root, modules)).collect()
}

/// The module that defines the item of a path in `module`, or the path's own module if it is not of
/// this crate.
fn owner(modules: &Modules, module: &[String], path: &[String], reexports: usize) -> ModulePath {
    let (mut here, mut path) = (module.to_vec(), path);
    while let [first, rest @ ..] = path {
        match first.as_str() {
            "crate" => here.clear(),
            "self" => {}
            "super" => drop(here.pop()),
            name => {
                let below = [&here[..], std::slice::from_ref(first)].concat();
                let mut imports = modules.get(&here).into_iter().flat_map(|names| &names.imports);
                if modules.contains_key(&below) {
                    here = below;
                } else if let Some((_, import)) = imports.find(|(import, _)| import == name)
                    && reexports > 0
                {
                    let through = [&import[..], rest].concat();
                    return owner(modules, &here, &through, reexports - 1);
                } else {
                    break;
                }
            }
        }
        path = rest;
    }
    here
}

/// Describes the circles of a crate, one line for the modules of each folder.
fn circles(root: &Path, modules: &Modules) -> Vec<String> {
    // For each parent: the pairs of modules below it of which the first names the second, with a path.
    let mut parents: BTreeMap<&[String], BTreeMap<(String, String), String>> = BTreeMap::new();
    for (module, names) in modules {
        for path in &names.paths {
            let owner = owner(modules, module, path, REEXPORTS_MAX);
            let common = module.iter().zip(&owner).take_while(|(a, b)| a == b).count();
            let (Some(from), Some(to)) = (module.get(common), owner.get(common)) else { continue };
            if common > 0
                || !EXEMPT.iter().any(|exempt| (Path::new(exempt.0), exempt.1) == (root, from))
            {
                let pairs = parents.entry(&module[..common]).or_default();
                pairs.entry((from.clone(), to.clone())).or_insert_with(|| path.join("::"));
            }
        }
    }
    parents.retain(|_, pairs| keep_circles(pairs));
    let describe = |(parent, pairs): (&&[String], &BTreeMap<(String, String), String>)| {
        let steps: Vec<_> =
            pairs.iter().map(|((from, _), path)| format!("{from} names {path}")).collect();
        let folder = parent.iter().fold(root.to_owned(), |folder, name| folder.join(name));
        format!("{}: a circle of modules: {}", folder.display(), steps.join(", "))
    };
    parents.iter().map(describe).collect()
}

/// Removes the pairs that are part of no circle. Returns whether any pair is left.
fn keep_circles(pairs: &mut BTreeMap<(String, String), String>) -> bool {
    loop {
        let before = pairs.len();
        let (from, to): (BTreeSet<_>, BTreeSet<_>) = pairs.keys().cloned().unzip();
        pairs.retain(|(a, b), _| to.contains(a) && from.contains(b));
        if pairs.len() == before {
            return before > 0;
        }
    }
}
