//! Just enough of Rust's grammar to tell code from comments and literals.

#[cfg(test)]
mod tests;

/// The source with the content of comments, strings and character literals blanked out. Lines stay
/// where they are.
pub(crate) fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (len, is_code) = token(rest, first, code.chars().next_back());
        let (text, after) = rest.split_at(len);
        if is_code {
            code.push_str(text);
        } else {
            // A blank in its place, so that the words on both sides stay two.
            code.push(' ');
            code.extend(text.chars().filter(|c| *c == '\n'));
        }
        rest = after;
    }
    code
}

/// Whether `code` has `word` as a whole identifier, and what follows it.
pub(crate) fn after_word<'a>(code: &'a str, word: &str) -> Option<&'a str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).find_map(|(at, _)| {
        let after = &code[at + word.len()..];
        let joined = code[..at].ends_with(is_part) || after.starts_with(is_part);
        (!joined).then_some(after)
    })
}

/// The bytes that the token at the start of `rest` takes, and whether they are code. `before` is
/// the last character of code before it.
fn token(rest: &str, first: char, before: Option<char>) -> (usize, bool) {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    match first {
        '/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), false),
        '/' if rest.starts_with("/*") => (block_comment(rest), false),
        '"' => (quoted(rest, '"'), false),
        '\'' => character(rest).map_or((1, true), |len| (len, false)),
        'r' | 'b' | 'c' if !in_word => raw_string(rest).map_or((1, true), |len| (len, false)),
        _ => (first.len_utf8(), true),
    }
}

/// Block comments nest.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// From the opening quote to the closing one, past escapes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return at + 1;
        }
    }
    rest.len()
}

/// A character literal; `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let mut chars = rest[1..].chars();
    let content = chars.next()?;
    let literal = content == '\\' || chars.next() == Some('\'');
    literal.then(|| quoted(rest, '\''))
}

/// `r"…"`, `br#"…"#`, `cr##"…"##`; `None` for anything else that starts with these letters.
fn raw_string(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix(['b', 'c']).unwrap_or(rest).strip_prefix('r')?;
    let after_hashes = body.trim_start_matches('#');
    let hashes = &body[..body.len() - after_hashes.len()];
    let content = after_hashes.strip_prefix('"')?;
    let closing = format!("\"{hashes}");
    let start = rest.len() - content.len();
    Some(content.find(&closing).map_or(rest.len(), |at| start + at + closing.len()))
}
