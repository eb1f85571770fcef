//! `invar top`: live tables of all connections and ranks, by the files of the flight recorder.

mod ranks;

use std::collections::HashMap;
use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::iter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use console::Term;
use invar_core::metrics::Histogram;
use invar_core::recorder::{EventKind, Record};
use invar_core::stall::Role;
use invar_linux::recorder::{Reader, Recorded};
use serde::Serialize;

use self::ranks::{RankRow, Ranks};
use crate::failure::Failure;
use crate::inspect::{self, left_out, quantile_us, rails_up, waits_for};
use crate::output::{pretty_json, print};

/// Show the connections and ranks of all processes of this user, with rates, latency, waits and stalls.
///
/// The numbers come from the files of the flight recorder, so the processes need no setting. Root sees the
/// processes of all users. Ctrl-C ends the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// Print JSON: an object each time, with arrays of connections and ranks, and the number of files left out
    #[arg(long)]
    json: bool,
    /// Seconds between two looks, over which rates are measured
    #[arg(short = 'i', long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

/// A connection or rank of a process: the recorder's file and the number in it.
type Key = (PathBuf, usize);

/// Records of connections, each with its process.
type Records = HashMap<Key, (u32, Record)>;

/// The state of all processes at one time.
struct Look {
    at: Instant,
    connections: Records,
    ranks: Ranks,
    /// Number of files that were not read, because their users have too many bytes in such files.
    left_out: usize,
}

/// The object of `--json`.
#[derive(Serialize)]
struct Shown {
    connections: Vec<Row>,
    ranks: Vec<RankRow>,
    /// [`Look::left_out`] of the last look.
    left_out: usize,
}

/// A connection as it is shown.
#[derive(Serialize)]
struct Row {
    pid: u32,
    connection: usize,
    role: &'static str,
    device: String,
    peer: String,
    /// Number of rails that work, and of all; 0 of a connection over TCP.
    rails_up: u32,
    rails: u8,
    bytes: u64,
    messages: u64,
    bytes_per_second: f64,
    messages_per_second: f64,
    pending: u64,
    /// Microseconds of the sends that were sampled in the interval; nothing for a receiver.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    /// The part of the time in which the sender waited for the peer to post a receive.
    receive_wait: f64,
    waits_for: String,
    still_seconds: f64,
    stalls: u64,
    recoveries: u64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let pause = Duration::from_secs(args.interval);
    let (mut shown, mut before) = (look(), HashMap::new());
    loop {
        thread::sleep(pause);
        let now = look();
        let seconds = now.at.duration_since(shown.at).as_secs_f64();
        let ranks = ranks::rows(&shown.ranks, &now.ranks, seconds);
        keep_older(&mut before, shown.connections, &now.connections);
        let connections = rows(&before, &now.connections);
        let rows = Shown { connections, ranks, left_out: now.left_out };
        let text = match (args.json, args.once) {
            (true, true) => pretty_json(&rows)?,
            (true, false) => serde_json::to_string(&rows)
                .map_err(|error| Failure::new(format_args!("JSON: {error}")))?,
            (false, _) => tables(&rows),
        };
        if !args.once && !args.json && io::stdout().is_terminal() {
            // A terminal that cannot be cleared still shows the table.
            let _ = Term::stdout().clear_screen();
        }
        print(io::stdout(), "the connections and ranks", text.trim_end())?;
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        shown = now;
    }
}

/// Keeps for each connection the record before its latest one: nobody looks at an idle connection for seconds.
fn keep_older(before: &mut Records, shown: Records, now: &Records) {
    before.retain(|key, _| now.contains_key(key));
    for (key, older) in shown {
        if now.get(&key).is_some_and(|(_, latest)| latest.looked_ns != older.1.looked_ns) {
            before.insert(key, older);
        }
    }
}

/// Reads the open connections and the ranks of all living processes.
fn look() -> Look {
    let (connections, ranks) = (HashMap::new(), HashMap::new());
    let mut all = Look { at: Instant::now(), connections, ranks, left_out: 0 };
    let mut reader = Reader::of_this_user();
    for recorded in inspect::all(&mut reader).filter(|recorded| recorded.is_alive) {
        let Recorded { path, header, records, ranks, .. } = recorded;
        let pid = header.process.pid;
        for (number, record) in ranks {
            if !record.has_left {
                all.ranks.insert((path.clone(), number), (pid, record));
            }
        }
        for (number, record) in records {
            let is_closed =
                record.events.back().is_some_and(|event| event.kind == EventKind::Closed);
            if !is_closed {
                all.connections.insert((path.clone(), number), (pid, record));
            }
        }
    }
    all.left_out = reader.left_out();
    all
}

/// The connections, those that move most first.
fn rows(before: &Records, now: &Records) -> Vec<Row> {
    let row = |(key, (pid, record)): (&Key, &(u32, Record))| {
        row(*pid, key.1, before.get(key).map(|(_, record)| record), record)
    };
    let mut rows: Vec<_> = now.iter().map(row).collect();
    rows.sort_by(|a, b| {
        let by_rate = b.bytes_per_second.total_cmp(&a.bytes_per_second);
        by_rate.then((a.pid, a.connection).cmp(&(b.pid, b.connection)))
    });
    rows
}

fn row(pid: u32, connection: usize, before: Option<&Record>, now: &Record) -> Row {
    // Another connection may have taken the place.
    let before = before.filter(|before| {
        before.ends == now.ends
            && before.looked_ns < now.looked_ns
            && before.numbers.bytes <= now.numbers.bytes
    });
    let seconds = before.map(|before| (now.looked_ns - before.looked_ns) as f64 / 1e9);
    let rate = |of: fn(&Record) -> u64| match (before, seconds) {
        (Some(before), Some(seconds)) => of(now).saturating_sub(of(before)) as f64 / seconds,
        _ => 0.0,
    };
    let latency = match before {
        Some(before) => now.numbers.latency.since(&before.numbers.latency),
        None => Histogram::default(),
    };
    Row {
        pid,
        connection,
        role: if now.role == Role::Sender { "sender" } else { "receiver" },
        device: now.device.as_str().to_owned(),
        peer: now.peer.as_str().to_owned(),
        rails_up: rails_up(now),
        rails: now.rail_count,
        bytes: now.numbers.bytes,
        messages: now.view.done,
        bytes_per_second: rate(|of| of.numbers.bytes),
        messages_per_second: rate(|of| of.view.done),
        pending: now.view.begun.saturating_sub(now.view.done),
        p50_us: quantile_us(&latency, 500),
        p99_us: quantile_us(&latency, 990),
        receive_wait: rate(|of| of.numbers.receive_wait_ns) / 1e9,
        waits_for: waits_for(now.role, &now.view),
        still_seconds: if now.view.is_waiting { f64::from(now.view.still_ms) / 1e3 } else { 0.0 },
        stalls: now.numbers.stalls,
        recoveries: now.numbers.recoveries,
    }
}

fn tables(shown: &Shown) -> String {
    let tables = match (&shown.connections[..], &shown.ranks[..]) {
        ([], []) => "no process has an open connection or a rank that is recorded\n".to_owned(),
        (connections, []) => table(connections),
        ([], ranks) => ranks::table(ranks),
        (connections, ranks) => table(connections) + "\n" + &ranks::table(ranks),
    };
    tables + &left_out(shown.left_out).unwrap_or_default()
}

/// A column of the table.
struct Column {
    title: &'static str,
    /// Whether the cells begin at the left.
    is_text: bool,
    /// The cell that says nothing. The column is left out if all cells are like it, so that the table is narrow.
    empty: Option<&'static str>,
    cell: fn(&Row) -> String,
}

const fn text(title: &'static str, cell: fn(&Row) -> String) -> Column {
    Column { title, is_text: true, empty: None, cell }
}

const fn number(
    title: &'static str,
    empty: Option<&'static str>,
    cell: fn(&Row) -> String,
) -> Column {
    Column { title, is_text: false, empty, cell }
}

const COLUMNS: [Column; 14] = [
    number("PID", None, |row| row.pid.to_string()),
    number("CONN", None, |row| row.connection.to_string()),
    text("ROLE", |row| row.role.to_owned()),
    text("DEVICE", |row| row.device.clone()),
    text("PEER", |row| row.peer.clone()),
    number("RAILS", None, |row| match row.rails {
        0 => "-".to_owned(),
        all => format!("{}/{all}", row.rails_up),
    }),
    number("GB/s", None, |row| format!("{:.3}", row.bytes_per_second / 1e9)),
    number("msg/s", None, |row| format!("{:.0}", row.messages_per_second)),
    number("PEND", Some("0"), |row| row.pending.to_string()),
    number("p50 us", Some("-"), |row| microseconds(row.p50_us)),
    number("p99 us", Some("-"), |row| microseconds(row.p99_us)),
    number("WAIT %", Some("0.0"), |row| format!("{:.1}", row.receive_wait * 100.0)),
    number("STALLS", Some("0"), |row| row.stalls.to_string()),
    number("RECOV", Some("0"), |row| row.recoveries.to_string()),
];

fn microseconds(us: Option<f64>) -> String {
    us.map_or("-".to_owned(), |us| format!("{us:.1}"))
}

/// The table. A connection that waits has a second line, which says for what.
fn table(rows: &[Row]) -> String {
    let mut lines = vec![String::new(); rows.len() + 1];
    for Column { title, is_text, empty, cell } in &COLUMNS {
        let cells: Vec<String> = rows.iter().map(cell).collect();
        if empty.is_some_and(|empty| cells.iter().all(|cell| cell == empty)) {
            continue;
        }
        let cells = || iter::once(*title).chain(cells.iter().map(String::as_str));
        let width = cells().map(|cell| cell.chars().count()).max().unwrap_or_default();
        for (line, cell) in lines.iter_mut().zip(cells()) {
            let space = if line.is_empty() { "" } else { " " };
            let _ = match is_text {
                true => write!(line, "{space}{cell:<width$}"),
                false => write!(line, "{space}{cell:>width$}"),
            };
        }
    }
    let waits = rows.iter().map(|row| match (row.waits_for.as_str(), row.still_seconds) {
        ("nothing", _) => String::new(),
        (what, still) if still >= 1.0 => format!("\n    waits for {what}, for {still:.1} s"),
        (what, _) => format!("\n    waits for {what}"),
    });
    let waits = iter::once(String::new()).chain(waits);
    lines.iter().zip(waits).map(|(line, wait)| format!("{}{wait}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use invar_core::stall::EndView;

    use super::*;

    #[test]
    fn a_connection_that_was_not_looked_at_again_keeps_its_rate() {
        let at = |looked_ns, bytes| {
            let mut record = Record::new(Role::Sender, 1, "ends", EndView::default(), 1);
            record.looked_ns = looked_ns;
            record.numbers.bytes = bytes;
            Records::from([(("a".into(), 0), (7, record))])
        };
        let mut before = Records::new();
        let rate = |before: &mut Records, shown, now| {
            keep_older(before, shown, &now);
            rows(before, &now)[0].bytes_per_second
        };
        let (first, second) = (at(1_000_000_000, 0), at(3_000_000_000, 200));
        assert_eq!(rate(&mut before, first, second.clone()), 100.0);
        assert_eq!(rate(&mut before, second.clone(), second), 100.0);
    }

    #[test]
    fn the_latencies_of_a_row_are_those_of_its_interval() {
        let mut before = Record::new(Role::Sender, 1, "ends", EndView::default(), 1);
        (0..1000).for_each(|_| before.numbers.latency.add(1_000_000_000));
        let mut now = before.clone();
        now.looked_ns = 2;
        let latencies = |now: &Record| {
            let row = row(7, 0, Some(&before), now);
            (row.p50_us, row.p99_us)
        };
        assert_eq!(latencies(&now), (None, None), "nothing was sampled");
        (0..3).for_each(|_| now.numbers.latency.add(1_000));
        assert_eq!(latencies(&now), (Some(1.0), Some(1.0)));
    }

    /// A connection of two rails, of which one works.
    fn two_rails() -> Record {
        let mut record = Record::new(Role::Sender, 1, "ends", EndView::default(), 1);
        record.name("soft0", "192.0.2.5");
        (record.rail_count, record.rails_down) = (2, 0b10);
        record
    }

    #[test]
    fn a_table_fits_80_columns_and_leaves_out_columns_that_say_nothing() {
        let before = two_rails();
        let mut now = before.clone();
        now.looked_ns = 1_000_000_001;
        now.numbers.bytes = 12_345_678_901;
        now.view.done = 1_234_567;
        (0..3).for_each(|_| now.numbers.latency.add(49_152_000));
        let text = table(&[row(1_234_567, 0, Some(&before), &now)]);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.contains(" RAILS ") && text.contains(" 1/2 "), "{text}");
        assert!(!text.contains("STALLS") && !text.contains("waits"), "{text}");
        now.numbers.stalls = 1;
        now.view = EndView { is_waiting: true, begun: 1_234_569, still_ms: 3_100, ..now.view };
        let text = table(&[row(7, 0, Some(&before), &now)]);
        assert!(text.contains(" STALLS"), "{text}");
        assert!(
            text.ends_with("    waits for the acknowledge of 2 messages, for 3.1 s\n"),
            "{text}"
        );
    }
}
