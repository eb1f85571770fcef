//! Warnings about variables that look like settings and that neither Invar nor NCCL reads.

use invar_core::param::{NCCL_ONLY, TABLE};

/// Settings of Invar and of NCCL's networks begin with one of these prefixes.
const PREFIXES: [&str; 3] = ["INVAR_", "NCCL_IB_", "NCCL_SOCKET_"];
/// Variables of Invar's own tests and benchmarks begin with one of these prefixes.
const TESTS: [&str; 4] = ["INVAR_TEST_", "INVAR_SIM_", "INVAR_BENCH_", "INVAR_GPU"];

/// Returns a remark on each name that neither Invar nor NCCL reads, in alphabetical order.
pub(super) fn remarks(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut unknown: Vec<String> = names.into_iter().filter(|name| is_unknown(name)).collect();
    unknown.sort_unstable();
    unknown.iter().map(|name| remark(name)).collect()
}

fn remark(name: &str) -> String {
    let advice = match nearest(name) {
        Some(known) => format!("is {known} meant?"),
        None => "`invar settings` shows all variables of Invar".to_owned(),
    };
    let name = name.escape_debug();
    format!("{name} is set, and neither Invar nor NCCL reads a variable of that name: {advice}")
}

fn is_unknown(name: &str) -> bool {
    begins(name, &PREFIXES) && !begins(name, &TESTS) && known().all(|known| known != name)
}

fn begins(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

fn known() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|info| info.name).chain(NCCL_ONLY.iter().copied())
}

/// Returns the known name with the smallest edit distance to `name`, if that distance is small.
fn nearest(name: &str) -> Option<&'static str> {
    let distance = |known: &&str| strsim::osa_distance(known, name);
    let known = known().min_by_key(distance)?;
    // The part behind the last underscore may have only two letters. A name that shares neither of them
    // is a different name.
    let suffix = known.rsplit_once('_').map_or(known, |(_, suffix)| suffix);
    (distance(&known) <= suffix.len().div_ceil(3)).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Vec<String> {
        remarks(names.iter().map(|name| (*name).to_owned()))
    }

    #[test]
    fn a_slip_is_told_with_the_name_that_is_nearest() {
        for (name, meant) in [
            ("INVAR_TRANSPRT", "INVAR_TRANSPORT"),
            ("NCCL_IB_TIMOUT", "NCCL_IB_TIMEOUT"),
            ("NCCL_IB_HAC", "NCCL_IB_HCA"),
            ("NCCL_IB_MERGE_NIC", "NCCL_IB_MERGE_NICS"),
            ("NCCL_SOCKET_IFNAM", "NCCL_SOCKET_IFNAME"),
            ("INVAR_COLL_SECRETS", "INVAR_COLL_SECRET"),
        ] {
            let told = of(&[name]);
            assert!(told[0].starts_with(&format!("{name} is set, and neither Invar nor")));
            assert!(told[0].ends_with(&format!(": is {meant} meant?")), "{told:?}");
        }
        for name in ["INVAR_PASSWORD", "NCCL_IB_XY", "NCCL_SOCKET_"] {
            let told = of(&[name]);
            assert!(told[0].ends_with("`invar settings` shows all variables of Invar"), "{told:?}");
        }
    }

    #[test]
    fn names_that_somebody_reads_and_names_of_others_are_left_alone() {
        let others = ["NCCL_NET", "NCCL_P2P_LEVEL", "PATH", "IB_TIMOUT", "INVAR"];
        let tests = ["INVAR_TEST_RANK", "INVAR_SIM_SEED"];
        let all: Vec<&str> = known().chain(others).chain(tests).collect();
        assert_eq!(of(&all), [""; 0]);
        let ours = TABLE.iter().map(|info| info.name);
        assert!(ours.clone().all(|name| !NCCL_ONLY.contains(&name)));
    }
}
