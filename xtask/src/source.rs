//! Distinguishes code from comments and literals, with as little of Rust's grammar as that needs.

mod names;
#[cfg(test)]
mod tests;

pub(crate) use names::Names;

/// Blanks out the content of comments, strings and character literals. Lines keep their numbers.
pub(crate) fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (len, is_code) = token(rest, first, code.chars().next_back());
        let (text, after) = rest.split_at(len);
        if is_code {
            code.push_str(text);
        } else {
            // A blank keeps the words on both sides apart.
            code.push(' ');
            code.extend(text.chars().filter(|c| *c == '\n'));
        }
        rest = after;
    }
    code
}

/// The text after the first occurrence of `word` in `code` as a whole identifier.
pub(crate) fn after_word<'a>(code: &'a str, word: &str) -> Option<&'a str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).find_map(|(at, _)| {
        let after = &code[at + word.len()..];
        let joined = code[..at].ends_with(is_part) || after.starts_with(is_part);
        (!joined).then_some(after)
    })
}

/// The length in bytes of the token at the start of `rest`, and whether the token is code. `before` is
/// the last character of code before the token.
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

/// The length of a block comment. Block comments nest.
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

/// The length of a literal from the opening quote to the closing one, past escapes.
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

/// The length of a character literal, or `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let mut chars = rest[1..].chars();
    let content = chars.next()?;
    let literal = content == '\\' || chars.next() == Some('\'');
    literal.then(|| quoted(rest, '\''))
}

/// The length of a literal `r"…"`, `br#"…"#` or `cr##"…"##`. Returns `None` for anything else that
/// starts with these letters.
fn raw_string(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix(['b', 'c']).unwrap_or(rest).strip_prefix('r')?;
    let after_hashes = body.trim_start_matches('#');
    let hashes = &body[..body.len() - after_hashes.len()];
    let content = after_hashes.strip_prefix('"')?;
    let closing = format!("\"{hashes}");
    let start = rest.len() - content.len();
    Some(content.find(&closing).map_or(rest.len(), |at| start + at + closing.len()))
}
