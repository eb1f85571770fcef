//! The options that all ranks of a measurement must have alike.

use invar::Communicator;

use super::Args;
use crate::failure::{Failure, line};

/// The names and values of options, in one order.
type Options = Vec<(String, String)>;

/// The value of an option that a rank does not have.
const UNKNOWN: &str = "unknown";

/// Compares the options of all ranks before any of them moves data.
///
/// # Errors
/// The options differ. The error names the first difference, with both ranks and both values. Every
/// rank gets this error.
pub(super) fn agree(communicator: &Communicator, args: &Args) -> Result<(), Failure> {
    let ours = of(args);
    let all = communicator.exchange(&to_bytes(&ours))?;
    let all: Vec<Options> = all.iter().map(|bytes| parse(bytes)).collect();
    let Some(text) = difference(&all) else { return Ok(()) };
    // The process that has the rendezvous ends after all have heard this.
    let _ = communicator.exchange(&[]);
    Err(Failure::usage(text))
}

fn of(args: &Args) -> Options {
    let Args { operation, sizes, iters, warmup, data_type, redop, root_rank, no_check, .. } = args;
    let bytes = |bytes: u32| format!("{bytes} bytes");
    let options = [
        ("the operation", operation.name().to_owned()),
        ("--min-bytes", bytes(sizes.min_bytes)),
        ("--max-bytes", bytes(sizes.max_bytes)),
        ("--factor", sizes.factor.to_string()),
        ("--iters", iters.map_or("not given".to_owned(), |iters| iters.to_string())),
        ("--warmup", warmup.to_string()),
        ("--type", data_type.name().to_owned()),
        ("--redop", redop.name().to_owned()),
        ("--root-rank", root_rank.to_string()),
        ("--no-check", if *no_check { "given" } else { "not given" }.to_owned()),
    ];
    options.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// Writes each option as a line `name=value`.
fn to_bytes(options: &Options) -> Vec<u8> {
    options.iter().flat_map(|(name, value)| format!("{name}={value}\n").into_bytes()).collect()
}

fn parse(bytes: &[u8]) -> Options {
    let text = String::from_utf8_lossy(bytes);
    let option = |line: &str| line.split_once('=').map(|(name, value)| (name.into(), value.into()));
    text.lines().filter_map(option).collect()
}

/// The first difference between rank 0 and another rank.
fn difference(all: &[Options]) -> Option<String> {
    let zero = all.first()?;
    all.iter().enumerate().find_map(|(rank, theirs)| {
        let names = zero.iter().chain(theirs).map(|(name, _)| name);
        let differs = |name: &&String| value(zero, name) != value(theirs, name);
        let name = names.into_iter().find(differs)?;
        let (ours, theirs) = (value(zero, name), value(theirs, name));
        let text = format!(
            "the ranks were started with different options: {name} is {ours} at rank 0 and {theirs} \
             at rank {rank}; start all ranks alike"
        );
        Some(line(&text))
    })
}

fn value<'a>(options: &'a Options, name: &str) -> &'a str {
    let option = options.iter().find(|(of, _)| of == name);
    option.map_or(UNKNOWN, |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> Options {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn options_survive_the_way_to_other_ranks() {
        let sent = options(&[("the operation", "all_reduce"), ("--type", "float")]);
        assert_eq!(parse(&to_bytes(&sent)), sent);
        assert_eq!(parse(b"\xff\nno pair\n"), options(&[]));
    }

    #[test]
    fn the_first_difference_is_told_with_both_ranks() {
        let zero = options(&[("--redop", "sum"), ("--type", "float")]);
        let alike = [zero.clone(), zero.clone()];
        assert_eq!(difference(&alike), None);
        let half = options(&[("--redop", "sum"), ("--type", "half")]);
        let text = difference(&[zero.clone(), zero.clone(), half]).unwrap();
        assert!(text.contains("--type is float at rank 0 and half at rank 2"), "{text}");
        let text = difference(&[zero, options(&[("--redop", "sum")])]).unwrap();
        assert!(text.contains("--type is float at rank 0 and unknown at rank 1"), "{text}");
    }
}
