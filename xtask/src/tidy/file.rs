//! Checks the rules for the content of a file.

#[cfg(test)]
mod tests;

use std::path::Path;

use crate::source::{after_word, code_only};

const LINES_MAX: usize = 500;

/// The number of lines above an unsafe block within which its reason may start.
const SAFETY_LINES: usize = 8;

/// Each word is written in two halves, because tidy checks this file too.
const UNFINISHED_WORDS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const UNFINISHED_MACROS: [&str; 2] = ["todo", "unimplemented"];

/// Module names that say nothing about the content.
const EMPTY_NAMES: [&str; 6] = ["util", "utils", "common", "helper", "helpers", "types"];

/// The number of a line, counted from 1, and what is wrong with the line.
pub(super) type Finding = (usize, String);

/// Checks a file. `path` is relative to the repository's root.
pub(super) fn check(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for word in UNFINISHED_WORDS.iter().filter(|word| after_word(line, word).is_some()) {
            findings.push((number, format!("{word} left behind: finish it, or open an issue")));
        }
    }
    if path.extension().is_some_and(|extension| extension == "rs") {
        check_rust(path, text, &mut findings);
    }
    findings
}

fn check_rust(path: &Path, text: &str, findings: &mut Vec<Finding>) {
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > LINES_MAX {
        let message = format!("{} lines, more than {LINES_MAX}: split by concept", lines.len());
        findings.push((LINES_MAX + 1, message));
    }
    let in_core = path.starts_with("core/src");
    let code = code_only(text);
    for (number, code) in (1..).zip(code.lines()) {
        for name in UNFINISHED_MACROS {
            if after_word(code, name).is_some_and(|after| after.starts_with('!')) {
                findings.push((number, format!("{name}! left behind")));
            }
        }
        if let Some(name) = module(code).filter(|name| EMPTY_NAMES.contains(name)) {
            findings.push((number, format!("a module called {name}: name the concept")));
        }
        let Some(after) = after_word(code, "unsafe") else { continue };
        if in_core {
            findings.push((number, "unsafe in invar-core".to_owned()));
        } else if claims_safety(after) && !has_reason(&lines[..number]) {
            findings.push((number, "unsafe without a `// SAFETY:` line above it".to_owned()));
        }
    }
}

/// The name of the module that a line of code declares.
fn module(code: &str) -> Option<&str> {
    let name = after_word(code, "mod")?.trim_start();
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    Some(&name[..end])
}

/// Whether the code after `unsafe` is a promise (a block or an impl). A demand on the caller (a
/// function or a trait) has its reason in its documentation.
fn claims_safety(after: &str) -> bool {
    let after = after.trim_start();
    after.is_empty() || after.starts_with('{') || after.starts_with("impl")
}

/// Whether the last of `lines`, or one of the [`SAFETY_LINES`] above it, gives the reason for an unsafe
/// block.
fn has_reason(lines: &[&str]) -> bool {
    lines.iter().rev().take(1 + SAFETY_LINES).any(|line| line.contains("SAFETY:"))
}
