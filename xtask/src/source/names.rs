//! The paths that a file's code names.

#[cfg(test)]
mod tests;

use super::code_only;

/// The paths in a file.
#[derive(Default)]
pub(crate) struct Names {
    /// The names that `use` brings, each with its path.
    pub(crate) imports: Vec<(String, Vec<String>)>,
    /// All other paths, and those of private imports.
    pub(crate) paths: Vec<Vec<String>>,
}

impl Names {
    /// Reads a file, except its unit tests.
    pub(crate) fn of(text: &str) -> Self {
        let code = code_only(text);
        // Unit tests are the last module of their file.
        let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let (tokens, mut names, mut at) = (tokens(code), Names::default(), 0);
        while at < tokens.len() {
            let before = at.checked_sub(1).map_or("", |before| tokens[before]);
            let mut found = Vec::new();
            if tokens[at] == "use" {
                at = tree(&tokens, at + 1, &[], &mut found);
                if !["pub", ")"].contains(&before) {
                    names.paths.extend(found.iter().map(|(_, path)| path.clone()));
                }
                names.imports.extend(found);
            } else if tokens.get(at + 1) == Some(&"::") && !["::", "."].contains(&before) {
                at = tree(&tokens, at, &[], &mut found).max(at + 1);
                names.paths.extend(found.into_iter().map(|(_, path)| path));
            } else {
                at += 1;
            }
        }
        names
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Words, `::`, and single characters.
fn tokens(code: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), code.trim_start());
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let len = if rest.starts_with("::") { 2 } else { word.max(first.len_utf8()) };
        let (token, after) = rest.split_at(len);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

/// Reads a path or a tree of paths. Adds each path with the name that it brings, and returns the index
/// of the first token behind them.
fn tree(
    tokens: &[&str],
    mut at: usize,
    prefix: &[String],
    found: &mut Vec<(String, Vec<String>)>,
) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens.get(at) {
            Some(&"{") => {
                at += 1;
                while at < tokens.len() && tokens[at] != "}" {
                    at = tree(tokens, at, &path, found).max(at + 1);
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            Some(&"self") if !path.is_empty() => at += 1,
            Some(word) if is_word(word) => {
                path.push((*word).to_owned());
                at += 1;
            }
            _ => break,
        }
        if tokens.get(at) != Some(&"::") {
            break;
        }
        at += 1;
    }
    let mut name = path.last().cloned().unwrap_or_default();
    if let Some(["as", alias]) = tokens.get(at..at + 2) {
        (name, at) = ((*alias).to_owned(), at + 2);
    }
    found.push((name, path));
    at
}
