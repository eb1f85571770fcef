//! Changes the network of rxe under load. In a [full](super::is_full) run links go down and up a hundred times at
//! random, over one rail and over two; the address of a device is replaced; and a device goes away. The connection
//! goes on, and no byte is wrong.

use std::env;
use std::fmt::{self, Write as _};

use anyhow::{Context, Result, ensure};
use invar_linux::random::random;
use invar_testkit::random::Random;

use super::guest;
use crate::shell::Shell;

/// The devices of the sender and the receiver. `xtask/vm/chaos` makes rxe_c and rxe_d.
const ONE_RAIL: [&str; 2] = ["rxe_a", "rxe_b"];
const TWO_RAILS: [&str; 2] = ["rxe_a+rxe_c", "rxe_b+rxe_d"];
/// The interfaces of the cables, those of the first rail before those of the second.
const INTERFACES: [&str; 4] = ["veth0", "veth1", "veth2", "veth3"];

const OUTAGES: u64 = 100;
/// How long a link is down and up, in milliseconds.
const DOWN_MS: std::ops::Range<u64> = 200..1500;
const UP_MS: std::ops::Range<u64> = 500..2500;
/// After so many outages the link stays up for [`QUIET_MS`], and the bandwidth is measured.
const QUIET_EVERY: u64 = 20;
const QUIET_MS: u64 = 10_000;
/// The time in which the bandwidth returns after the link.
const BACK_WITHIN_MS: u64 = 5000;
/// The part of the bandwidth that returns, in percent. The bound is loose, because other programs of a busy host take
/// processors from the guest.
const BACK_PERCENT: f64 = 25.0;
/// A rail is settled once its link has been up for this long. Linux asks once a second for a peer's MAC, and tells
/// devices of a link once a second.
const SETTLED_MS: u64 = 2500;
/// The longest gap of 99 outages of 100, in milliseconds. Under emulation a gap takes many times as long as on a host.
const GAP_MS_MAX: f64 = 15_000.0;

/// Changes that do not depend on chance: what they are, the devices, and the shell commands.
const CHANGES: [(&str, [&str; 2], &str); 4] = [
    ("the address of the only rail is replaced", ONE_RAIL, REPLACED),
    ("the address of a rail is replaced", TWO_RAILS, REPLACED),
    ("the device of a rail is deleted", TWO_RAILS, "at 6000; rdma link delete rxe_a & mark gone"),
    ("the device of a rail is unplugged", TWO_RAILS, "at 6000; ip link delete veth2 & mark gone"),
];
const REPLACED: &str = "at 6000; ip address del 192.0.2.1/24 dev veth0; mark gone; at 8000; \
                        ip address add 192.0.2.11/24 dev veth0; mark back";
/// How long messages go while such a change happens, and after the last change in any case, in seconds.
const CHANGE_SECONDS: u64 = 24;
const AFTER_SECONDS: f64 = 4.0;

pub(super) fn run(shell: &Shell, invar: &str) -> Result<()> {
    let load = |ends: [&str; 2], seconds: u64, changes: &str| -> Result<(String, Course)> {
        let [sender, receiver] = ends;
        let line = format!("xtask/vm/chaos {invar} {sender} {receiver} {seconds} '{changes}'");
        let output = guest(shell, None, &line)?;
        let course = Course::parse(&output);
        course.map(|course| (output.clone(), course)).with_context(|| output)
    };
    for (what, ends, changes) in CHANGES {
        let (output, course) = load(ends, CHANGE_SECONDS, changes)?;
        course.check().and_then(|()| course.check_goes_on()).with_context(|| {
            format!("where {what} ({}); the guest said:\n{output}", ends.join(" to "))
        })?;
        eprintln!("{what}: the longest gap was {:.0} ms", course.longest_gap_ms());
    }
    let seed = match env::var("INVAR_TEST_SEED") {
        Ok(seed) => seed.parse().context("INVAR_TEST_SEED")?,
        Err(_) => u64::from(u32::from_ne_bytes(random()?)),
    };
    for (ends, interfaces) in [(TWO_RAILS, &INTERFACES[..]), (ONE_RAIL, &INTERFACES[..2])] {
        let again = format!("INVAR_TEST_SEED={seed}, {}", ends.join(" to "));
        eprintln!("{again}: {OUTAGES} outages");
        let (changes, end_ms) = outages(&mut Random::new(seed), interfaces);
        let (output, course) = load(ends, end_ms / 1000, &changes)?;
        let report = Report::of(&course);
        eprintln!("{again}: {report}");
        let is_well = course.check().and_then(|()| report.check());
        is_well.with_context(|| format!("{again}; the guest said:\n{output}"))?;
    }
    Ok(())
}

/// The shell commands that take interfaces down and up at random, and the time at which they are over, in
/// milliseconds.
fn outages(random: &mut Random, interfaces: &[&str]) -> (String, u64) {
    let mut within =
        |range: std::ops::Range<u64>| range.start + random.below(range.end - range.start);
    let (mut commands, mut at_ms) = (String::new(), QUIET_MS);
    for outage in 1..=OUTAGES {
        let interface = interfaces[within(0..interfaces.len() as u64) as usize];
        let up_at_ms = at_ms + within(DOWN_MS);
        // Writing to a string does not fail.
        let _ = write!(
            commands,
            "at {at_ms}; mark down {interface}; ip link set {interface} down; \
             at {up_at_ms}; ip link set {interface} up; mark up {interface}; "
        );
        at_ms = up_at_ms + if outage % QUIET_EVERY == 0 { QUIET_MS } else { within(UP_MS) };
    }
    (commands, at_ms)
}

/// The output of `xtask/vm/chaos`. Times are in microseconds.
struct Course {
    slices: Vec<Slice>,
    /// The times at which the network was changed, with what was marked.
    marks: Vec<(u64, String)>,
    statuses: String,
    checked: u64,
    wrong: u64,
}

/// A part of the time, as the sender saw it.
struct Slice {
    end: u64,
    time: u64,
    bytes: u64,
    gap: u64,
}

impl Course {
    fn parse(output: &str) -> Result<Course> {
        let mut course = Course {
            slices: Vec::new(),
            marks: Vec::new(),
            statuses: String::new(),
            checked: 0,
            wrong: u64::MAX,
        };
        for line in output.lines() {
            let (at, text) = line.split_once(' ').context("a line has no time")?;
            let at = at.parse()?;
            let numbers = |text: &str| -> Result<Vec<u64>> {
                text.split(' ').map(|number| Ok(number.parse()?)).collect()
            };
            match text.split_once(' ') {
                Some(("slice", rest)) => {
                    let [time, bytes, gap] = numbers(rest)?[..] else { continue };
                    course.slices.push(Slice { end: at, time, bytes, gap });
                }
                Some(("ends", rest)) => rest.clone_into(&mut course.statuses),
                Some(("checked", rest)) => {
                    if let [checked, wrong] = numbers(rest)?[..] {
                        (course.checked, course.wrong) = (checked, wrong);
                    }
                }
                _ => course.marks.push((at, text.to_owned())),
            }
        }
        Ok(course)
    }

    /// Checks that both ends ended well, and that every byte arrived.
    fn check(&self) -> Result<()> {
        ensure!(self.statuses == "0 0", "the ends' statuses are {:?}", self.statuses);
        ensure!(self.wrong == 0, "{} bytes are wrong", self.wrong);
        let sent: u64 = self.slices.iter().map(|slice| slice.bytes).sum();
        ensure!(sent > 0 && self.checked == sent, "{} bytes of {sent} arrived", self.checked);
        Ok(())
    }

    /// Checks that messages go on after the last change.
    fn check_goes_on(&self) -> Result<()> {
        let (last, _) = self.marks.last().context("nothing was changed")?;
        let after =
            self.slices.iter().filter(|slice| slice.end - slice.time.min(slice.end) > *last);
        let seconds = after.clone().map(|slice| slice.time).sum::<u64>() as f64 / 1e6;
        ensure!(seconds >= AFTER_SECONDS, "only {seconds} s are left after the change");
        ensure!(after.map(|slice| slice.bytes).sum::<u64>() > 0, "nothing goes after the change");
        Ok(())
    }

    fn longest_gap_ms(&self) -> f64 {
        self.gap_ms(0, u64::MAX)
    }

    /// The longest gap of the slices that end between two times.
    fn gap_ms(&self, from: u64, to: u64) -> f64 {
        let within = self.slices.iter().filter(|slice| slice.end > from && slice.end <= to);
        within.map(|slice| slice.gap).max().unwrap_or(0) as f64 / 1e3
    }

    /// Bytes and seconds of the slices between two times.
    fn amount(&self, from: u64, to: u64) -> (f64, f64) {
        let is_within = |slice: &&Slice| slice.end > from + slice.time && slice.end <= to;
        let within = self.slices.iter().filter(is_within);
        within.fold((0.0, 0.0), |(bytes, seconds), slice| {
            (bytes + slice.bytes as f64, seconds + slice.time as f64 / 1e6)
        })
    }

    /// For each outage, whether another rail was settled when it began. One outage is over before the next one begins.
    fn have_settled_rail(&self) -> Vec<bool> {
        // `down INTERFACE`, `up INTERFACE`
        let rail_of = |text: &str| {
            let name = text.split(' ').nth(1)?;
            INTERFACES.iter().position(|interface| *interface == name).map(|at| at / 2)
        };
        let downs = self.marks.iter().filter(|(_, text)| text.starts_with("down"));
        let is_settled = |(begin, down): &(u64, String)| {
            let is_other = |(_, text): &&(u64, String)| {
                rail_of(text).is_some_and(|rail| Some(rail) != rail_of(down))
            };
            let mut of_others = self.marks.iter().filter(is_other).map(|(at, _)| *at).peekable();
            let has_others = of_others.peek().is_some();
            let last = of_others.take_while(|at| at < begin).last();
            has_others && last.is_none_or(|at| begin - at >= SETTLED_MS * 1000)
        };
        downs.map(is_settled).collect()
    }

    /// The times of the marks that begin with a word.
    fn times(&self, word: &str) -> Vec<u64> {
        let marks = self.marks.iter().filter(|(_, text)| text.starts_with(word));
        marks.map(|(at, _)| *at).collect()
    }
}

/// The cost of the outages.
struct Report {
    /// The longest gap of each outage in milliseconds, the shortest first.
    gaps_ms: Vec<f64>,
    /// Those of the outages during which another rail was settled.
    gaps_beside_ms: Vec<f64>,
    /// Bytes a second before the first outage, and once links are up for [`BACK_WITHIN_MS`].
    before: f64,
    after: f64,
}

impl Report {
    fn of(course: &Course) -> Report {
        let (downs, ups) = (course.times("down"), course.times("up"));
        let next = |i: usize| downs.get(i + 1).copied().unwrap_or(u64::MAX);
        let gap_ms = |i: usize| course.gap_ms(downs[i], next(i));
        let sorted = |mut gaps_ms: Vec<f64>| {
            gaps_ms.sort_by(f64::total_cmp);
            gaps_ms
        };
        let gaps_ms = sorted((0..downs.len()).map(gap_ms).collect());
        let beside = course.have_settled_rail();
        let beside = (0..downs.len()).filter(|i| beside[*i]);
        let gaps_beside_ms = sorted(beside.map(gap_ms).collect());
        let rate = |(bytes, seconds): (f64, f64)| if seconds > 0.0 { bytes / seconds } else { 0.0 };
        let back = ups
            .iter()
            .enumerate()
            .map(|(i, up)| course.amount(up + BACK_WITHIN_MS * 1000, next(i)));
        let sum = |a: (f64, f64), b: (f64, f64)| (a.0 + b.0, a.1 + b.1);
        let first = downs.first().copied().unwrap_or(0);
        Report {
            gaps_ms,
            gaps_beside_ms,
            before: rate(course.amount(0, first)),
            after: rate(back.fold((0.0, 0.0), sum)),
        }
    }

    fn back_percent(&self) -> f64 {
        100.0 * self.after / self.before.max(1.0)
    }

    fn check(&self) -> Result<()> {
        ensure!(self.gaps_ms.len() as u64 == OUTAGES, "there were {} outages", self.gaps_ms.len());
        let gap_ms = percentile(&self.gaps_ms, 99);
        ensure!(gap_ms < GAP_MS_MAX, "the gap is {gap_ms:.0} ms");
        let back = self.back_percent();
        ensure!(back >= BACK_PERCENT, "only {back:.0} % of the bandwidth is back");
        Ok(())
    }
}

/// The value of a sorted list that so many percent of its values do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let at = (sorted.len() * percent).div_ceil(100);
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::INFINITY)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (gaps_ms, what) in
            [(&self.gaps_ms, "outages"), (&self.gaps_beside_ms, "of them beside a settled rail")]
        {
            if gaps_ms.is_empty() {
                continue;
            }
            let [p50, p99, max] = [50, 99, 100].map(|percent| percentile(gaps_ms, percent));
            let count = gaps_ms.len();
            write!(
                f,
                "{count} {what}, gaps {p50:.0} ms (p50) {p99:.0} ms (p99) {max:.0} ms (max); "
            )?;
        }
        let [before, after] = [self.before, self.after].map(|rate| rate / 1e6);
        write!(
            f,
            "{before:.2} MB/s before, {after:.2} MB/s {} s after the link ({:.0} %)",
            BACK_WITHIN_MS / 1000,
            self.back_percent()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of a guest whose bandwidth after outages and whose gaps during outages are given.
    fn output(bytes_after: u64, gap_us: u64) -> String {
        let (mut text, mut sent) = (String::new(), 0);
        let mut at = 0;
        let mut slice = |text: &mut String, bytes: u64, gap: u64| {
            at += 500_000;
            sent += bytes;
            let _ = writeln!(text, "{at} slice 500000 {bytes} {gap}");
            at
        };
        (0..4).for_each(|_| _ = slice(&mut text, 1000, 100_000));
        for _ in 0..OUTAGES {
            let now = slice(&mut text, bytes_after, 100_000);
            let _ = writeln!(text, "{} down veth0\n{} up veth0", now + 1, now + 2);
            slice(&mut text, 500, gap_us);
            (0..10).for_each(|_| _ = slice(&mut text, 800, 100_000));
            slice(&mut text, bytes_after, 100_000);
        }
        let _ = writeln!(text, "9 ends 0 0\n9 checked {sent} 0");
        text
    }

    #[test]
    fn only_a_whole_course_without_long_gaps_whose_bandwidth_is_back_passes() {
        let check = |text: &str| {
            let course = Course::parse(text)?;
            course.check().and_then(|()| Report::of(&course).check())
        };
        let well = output(1000, 700_000);
        check(&well).unwrap();
        assert!(check(&output(100, 700_000)).is_err());
        assert!(check(&output(1000, 15_100_000)).is_err());
        for (from, to) in [
            ("ends 0 0", "ends 0 3"),
            ("ends", "end"),
            ("checked 1", "checked 2"),
            (" 0\n", " 1\n"),
            ("down", "went"),
        ] {
            assert!(check(&well.replace(from, to)).is_err(), "{from} -> {to}");
        }
        assert!(check("").is_err());
        let course = Course::parse(&well).unwrap();
        assert_eq!(course.longest_gap_ms(), 700.0);
        course.check_goes_on().unwrap();
        let late = well.replace("9 ends", "99000000000 gone\n9 ends");
        assert!(Course::parse(&late).unwrap().check_goes_on().is_err());
    }

    #[test]
    fn an_outage_beside_a_rail_that_has_just_come_back_counts_apart() {
        let of = |marks: &[(u64, &str)]| {
            let marks: String =
                marks.iter().map(|(ms, text)| format!("{ms}000 {text}\n")).collect();
            Course::parse(&marks).unwrap().have_settled_rail()
        };
        let two_rails = [
            (10_000, "down veth0"),
            (11_000, "up veth0"),
            (12_000, "down veth3"),
            (13_000, "up veth3"),
            (14_000, "down veth2"),
            (14_500, "up veth2"),
        ];
        assert_eq!(of(&two_rails), [true, false, true]);
        assert_eq!(of(&two_rails[..2]), [false], "there is one rail");
    }

    #[test]
    fn a_seed_names_the_outages() {
        let of = |seed| outages(&mut Random::new(seed), &INTERFACES);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let (commands, end_ms) = of(1);
        assert_eq!(commands.matches(" down;").count() as u64, OUTAGES);
        assert!(INTERFACES.iter().all(|interface| commands.contains(interface)));
        assert!((200_000..400_000).contains(&end_ms), "{end_ms}");
    }
}
