//! Compares the version, the settings and the clock of two ends. They should be equal.

use std::collections::BTreeSet;

use invar_core::param::TABLE;

use super::report::{Finding, Report, Severity};
use crate::perf::about::About;
use crate::perf::probe::ClockOffset;

/// NTP keeps clocks closer together than this.
const CLOCK_OFF_US: i64 = 100_000;

/// Compares version and settings of the host at `addr` with this end's.
pub(super) fn tell(addr: &str, ours: &About, theirs: &About, report: &mut Report) {
    let mut find = |id, what, costs: &str, mend| {
        report.find(Finding {
            severity: Severity::Warn,
            id,
            subject: addr.to_owned(),
            what,
            costs: costs.to_owned(),
            mend,
        });
    };
    if ours.version != theirs.version {
        find(
            "version-differs",
            format!("it has Invar {}, this host has {}", theirs.version, ours.version),
            "ends of different versions may refuse each other",
            "invar --version   # on both hosts, then install one version".to_owned(),
        );
    }
    let names: BTreeSet<&String> = ours.settings.keys().chain(theirs.settings.keys()).collect();
    for name in names {
        let default = TABLE.iter().find(|row| row.name == name).map_or("", |row| row.default);
        let [here, there] = [ours, theirs].map(|end| {
            let value = end.settings.get(name).map_or(default, String::as_str);
            if value.is_empty() { "not set" } else { value }
        });
        if here == there {
            continue;
        }
        find(
            "setting-differs",
            format!("{name} is {there} there, and {here} here"),
            "connections fail, or each direction works in another way",
            format!("export {name}=VALUE   # the same value for the processes of both hosts"),
        );
    }
}

/// Reports a clock that is far from this host's.
pub(super) fn tell_clock(addr: &str, offset: ClockOffset, report: &mut Report) {
    let ClockOffset { ahead_us, error_us } = offset;
    let ms = |us: i64| us.unsigned_abs() as f64 / 1000.0;
    let way = if ahead_us < 0 { "behind" } else { "ahead of" };
    let what = format!(
        "its clock is {:.1} ms {way} this host's, give or take {:.1} ms",
        ms(ahead_us),
        ms(error_us)
    );
    // Only what the error does not explain counts.
    if ahead_us.saturating_abs().saturating_sub(error_us) < CLOCK_OFF_US {
        report.well(format!("{addr}: {what}"));
        return;
    }
    report.find(Finding {
        severity: Severity::Warn,
        id: "clock-off",
        subject: addr.to_owned(),
        what,
        costs: "logs and traces of both hosts do not stand on one time line".to_owned(),
        mend: "timedatectl   # at both; NTP (chrony, systemd-timesyncd) must run".to_owned(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(version: &str, settings: &[(&str, &str)]) -> About {
        let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        About { version: version.to_owned(), clock_us: 0, settings: settings.collect() }
    }

    #[test]
    fn versions_and_settings_that_differ_are_found() {
        let mut report = Report::default();
        let ours = end("0.1.0", &[("INVAR_WIRE", "nccl-2.14"), ("NCCL_IB_TC", "106")]);
        tell("node8", &ours, &ours, &mut report);
        assert_eq!(report.short(), [""; 0]);
        let theirs = end("0.2.0", &[("NCCL_IB_TC", "106"), ("NCCL_IB_SL", "3")]);
        tell("node8", &ours, &theirs, &mut report);
        assert_eq!(
            report.short(),
            [
                "warn version-differs node8",
                "warn setting-differs node8",
                "warn setting-differs node8",
            ]
        );
        let wire = &report.finding("setting-differs").what;
        assert_eq!(wire, "INVAR_WIRE is invar there, and nccl-2.14 here");
        // Who sets the default differs from nobody.
        let mut report = Report::default();
        tell("node8", &end("0.1.0", &[("NCCL_IB_TIMEOUT", "20")]), &end("0.1.0", &[]), &mut report);
        assert_eq!(report.short(), [""; 0]);
    }

    #[test]
    fn a_clock_counts_as_far_as_the_round_trip_does_not_explain_it() {
        for (ahead_us, error_us, is_found) in [
            (99_000, 0, false),
            (150_000, 60_000, false),
            (-150_000, 10_000, true),
            (i64::MIN, 0, true),
        ] {
            let mut report = Report::default();
            tell_clock("node8", ClockOffset { ahead_us, error_us }, &mut report);
            assert_eq!(!report.short().is_empty(), is_found, "{ahead_us} ± {error_us}");
        }
    }
}
