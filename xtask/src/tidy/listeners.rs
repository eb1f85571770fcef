//! Where the product lets others call it.

#[cfg(test)]
mod tests;

use std::path::Path;

use super::file::Finding;
use crate::source::{after_word, code_only};

/// What makes a TCP listener. Only the listener that has callers prove themselves may have one.
const TCP_LISTENER: [&str; 6] = [
    "TcpListener",
    "Type::STREAM",
    "SocketType::STREAM",
    "SOCK_STREAM",
    "libc::listen",
    "net::listen",
];

/// Where that listener is: its socket, and what it does with callers. The third file makes a socket
/// only to ask the kernel for its congestion controls.
const AUTH_LISTENER: [&str; 3] =
    ["os-linux/src/tcp.rs", "os-linux/src/tcp/callers.rs", "os-linux/src/tcp/congestion.rs"];

/// What is wrong with the listeners of a file at `path`, which is relative to the repository's root.
pub(super) fn check(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !is_product(path) || AUTH_LISTENER.iter().any(|file| path == Path::new(file)) {
        return findings;
    }
    let words = TCP_LISTENER.iter().chain(&["OobListener"]);
    for (number, line) in product_code(text) {
        for word in words.clone().filter(|word| after_word(&line, word).is_some()) {
            let message = format!("{word}: strangers are kept off by AuthListener alone; use that");
            findings.push((number, message));
        }
    }
    findings
}

/// Whether the file is of what users run, and not of its tests.
fn is_product(path: &Path) -> bool {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    let is_source = matches!(
        (parts.next(), parts.next()),
        (
            Some(
                "core"
                    | "os-linux"
                    | "verbs-adapter"
                    | "cuda-adapter"
                    | "invar"
                    | "cli"
                    | "nccl-plugin"
            ),
            Some("src")
        )
    );
    is_source && !path.iter().any(|part| part == "tests" || part == "tests.rs")
}

/// The lines of code of a file, up to its tests, which come last.
fn product_code(text: &str) -> Vec<(usize, String)> {
    let code = code_only(text);
    let lines = (1..).zip(code.lines().map(str::to_owned));
    lines.take_while(|(_, line)| !line.starts_with("mod tests {")).collect()
}
