//! `invar inspect`: shows what a process' connections did last, while it lives and after it has died.

use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use invar_core::metrics::Histogram;
use invar_core::recorder::{Event, MessageTimes, RankOperation, RankRecord, RankWait, Record};
use invar_core::stall::{EndView, Role, Wait};
use invar_linux::clock::now_ns;
use invar_linux::recorder::{
    OTHERS_BYTES_MAX, Reader, Recorded, directory, files, process_of, read,
};
use serde::Serialize;

use crate::failure::{Failure, line};
use crate::logger::tell;
use crate::output::{pretty_json, print};

/// Show what a process' connections and ranks wait for, and what they did last.
///
/// Each process with connections or ranks of communicators keeps a file in $XDG_RUNTIME_DIR/invar or
/// /tmp/invar-UID. After a crash, a kill or a failed connection the file can still be read. Without an argument, the
/// command lists these files. With INVAR_RECORDER=2 a process also keeps the times of each connection's last 40
/// messages. Of a link between ranks over TCP it keeps one direction.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of a process, or a file
    #[arg(value_name = "PID|FILE")]
    process: Option<String>,
    /// Print JSON: an object with the process, and arrays of connections and ranks
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown {
    pid: u32,
    process: String,
    file: PathBuf,
    /// The user that owns the file.
    user: u32,
    is_alive: bool,
    damaged: usize,
    connections: Vec<ShownRecord>,
    ranks: Vec<ShownRank>,
}

#[derive(Serialize)]
struct ShownRank {
    number: usize,
    rank: u32,
    nranks: u32,
    /// The last operations of the rank, oldest first.
    operations: Vec<ShownOperation>,
}

#[derive(Serialize)]
struct ShownOperation {
    /// Number of collectives that the rank had entered by then.
    number: u64,
    what: String,
    bytes: u64,
    /// Nanoseconds since the Unix epoch.
    begun_unix_ns: i64,
    /// `null` while the operation runs.
    took_us: Option<f64>,
    waited_us: u32,
    /// The rank of the longest wait, and its time.
    longest_wait_rank: Option<u32>,
    longest_wait_us: Option<u32>,
}

#[derive(Serialize)]
struct ShownRecord {
    number: usize,
    role: &'static str,
    ends: String,
    qpn: u32,
    /// The number by which both ends know the connection.
    connection: u64,
    /// Nanoseconds that the peer's clock is ahead, and how sure that is.
    peer_clock_ahead_ns: Option<i64>,
    peer_clock_within_ns: Option<u64>,
    /// Milliseconds since the last look; of a dead process, before its last record.
    looked_ms_ago: Option<u64>,
    begun: u64,
    done: u64,
    untested: u32,
    /// Bytes of messages that the program has found done.
    bytes: u64,
    /// Microseconds of the sends that were sampled; nothing for a receiver.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    /// Seconds for which the sender waited for the peer to post a receive.
    receive_wait_seconds: f64,
    stalls: u64,
    recoveries: u64,
    /// Number of rails that work, and of all; 0 of a connection over TCP.
    rails_up: u32,
    rails: u8,
    is_waiting: bool,
    waits_for: String,
    still_ms: u32,
    verdict: String,
    events: Vec<ShownEvent>,
    /// The last messages, oldest first; none unless the process runs with `INVAR_RECORDER=2`.
    messages: Vec<ShownMessage>,
}

#[derive(Serialize)]
struct ShownMessage {
    /// Number of messages that the end had posted before.
    number: u64,
    request: u32,
    tag: u32,
    buffers: u32,
    bytes: u64,
    /// The program's first call, in nanoseconds since the Unix epoch.
    asked_unix_ns: i64,
    /// From the first call to the post.
    waited_us: f64,
    /// From the post to the last completion; `null` before.
    took_us: Option<f64>,
    /// From the last completion to the program's test; `null` before.
    untested_us: Option<f64>,
}

#[derive(Serialize)]
struct ShownEvent {
    /// Nanoseconds since the Unix epoch.
    unix_ns: i64,
    what: String,
    begun: u64,
    done: u64,
    untested: u32,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut reader = Reader::of_this_user();
    let text = match (&args.process, args.json) {
        (Some(process), true) => pretty_json(&shown(&open(&find(process)?)?))?,
        (None, true) => {
            let all = all(&mut reader).map(|recorded| shown(&recorded));
            pretty_json(&all.collect::<Vec<_>>())?
        }
        (Some(process), false) => details(&shown(&open(&find(process)?)?)),
        (None, false) => list(all(&mut reader)),
    };
    print(io::stdout(), "the recorders", text.trim_end())?;
    if let Some(text) = left_out(reader.left_out()) {
        tell(text);
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the files of all processes. A process may end before its file is read.
pub(crate) fn all(reader: &mut Reader) -> impl Iterator<Item = Recorded> {
    files().into_iter().filter_map(move |path| reader.read(&path).ok())
}

/// Says how many files of other users were not read, if any.
pub(crate) fn left_out(count: usize) -> Option<String> {
    let mib = OTHERS_BYTES_MAX >> 20;
    (count > 0).then(|| {
        format!("{count} files are left out: their users have more than {mib} MiB of them")
    })
}

/// Returns the file that an argument names: a path, or the number of a process.
pub(crate) fn find(process: &str) -> Result<PathBuf, Failure> {
    let Ok(pid) = process.parse::<u32>() else {
        // The user may name a link. Nobody else may.
        let path = PathBuf::from(process);
        return Ok(fs::canonicalize(&path).unwrap_or(path));
    };
    let mut found = files();
    found.retain(|path| process_of(path) == Some(pid));
    // Root sees the files of all users, and each can make one with the number of another's process.
    let owner = |path: &Path| fs::symlink_metadata(path).ok().map(|of| of.uid());
    let user = owner(format!("/proc/{pid}").as_ref());
    if let Some(path) = found.iter().find(|path| user.is_some() && owner(path) == user) {
        return Ok(path.clone());
    }
    match &*found {
        [] => Err(Failure::new(format_args!(
            "process {pid} has no flight recorder in {}: it has no connection and no rank, belongs to \
             another user, has INVAR_RECORDER=0, or has ended well",
            directory().display()
        ))),
        [first, others @ ..] if others.iter().all(|path| owner(path) == owner(first)) => {
            Ok(first.clone())
        }
        found => {
            let paths: Vec<_> = found.iter().map(|path| path.display().to_string()).collect();
            Err(Failure::new(format_args!(
                "several users have a flight recorder of a process {pid}: name the file, one of {}",
                paths.join(" ")
            )))
        }
    }
}

/// Reads a file.
pub(crate) fn open(path: &Path) -> Result<Recorded, Failure> {
    read(path).map_err(|error| Failure::io(format_args!("reading {}", path.display()), &error))
}

fn shown(recorded: &Recorded) -> Shown {
    let Recorded { path, user, header, is_alive, records, ranks, damaged } = recorded;
    let connections = records.iter().map(|(number, record)| {
        let Record { role, qpn, looked_ns, ends, view, verdict, events, numbers, .. } = record;
        let event = |event: &Event| ShownEvent {
            unix_ns: header.unix_offset_ns.wrapping_add(event.at_ns as i64),
            what: event.to_string(),
            begun: event.begun,
            done: event.done,
            untested: event.untested,
        };
        let message = |message: &MessageTimes| ShownMessage {
            number: message.number,
            request: message.request,
            tag: message.tag,
            buffers: message.buffers,
            bytes: message.bytes,
            asked_unix_ns: header.unix_offset_ns.wrapping_add(message.asked_ns as i64),
            waited_us: in_us(message.waited_ns()),
            took_us: message.took_ns().map(in_us),
            untested_us: message.untested_ns().map(in_us),
        };
        ShownRecord {
            number: *number,
            role: if *role == Role::Sender { "sender" } else { "receiver" },
            ends: ends.as_str().to_owned(),
            qpn: *qpn,
            connection: record.number,
            peer_clock_ahead_ns: record.peer_clock.map(|clock| clock.ahead_ns),
            peer_clock_within_ns: record.peer_clock.map(|clock| clock.uncertainty_ns),
            looked_ms_ago: is_alive.then(|| now_ns().saturating_sub(*looked_ns) / 1_000_000),
            begun: view.begun,
            done: view.done,
            untested: view.untested,
            bytes: numbers.bytes,
            p50_us: quantile_us(&numbers.latency, 500),
            p99_us: quantile_us(&numbers.latency, 990),
            receive_wait_seconds: numbers.receive_wait_ns as f64 / 1e9,
            stalls: numbers.stalls,
            recoveries: numbers.recoveries,
            rails_up: rails_up(record),
            rails: record.rail_count,
            is_waiting: view.is_waiting,
            waits_for: waits_for(*role, view),
            still_ms: view.still_ms,
            verdict: verdict.as_str().to_owned(),
            events: events.iter().map(event).collect(),
            messages: record.messages.iter().map(message).collect(),
        }
    });
    Shown {
        pid: header.process.pid,
        process: header.process.to_string(),
        file: path.clone(),
        user: *user,
        is_alive: *is_alive,
        damaged: *damaged,
        connections: connections.collect(),
        ranks: ranks.iter().map(|(number, rank)| shown_rank(recorded, *number, rank)).collect(),
    }
}

fn shown_rank(of: &Recorded, number: usize, record: &RankRecord) -> ShownRank {
    let operation = |operation: &RankOperation| {
        let RankOperation { number, begun_ns, took_ns, bytes, text, waited_us, longest } =
            operation;
        ShownOperation {
            number: *number,
            what: text.as_str().to_owned(),
            bytes: *bytes,
            begun_unix_ns: of.header.unix_offset_ns.wrapping_add(*begun_ns as i64),
            took_us: took_ns.map(in_us),
            waited_us: *waited_us,
            longest_wait_rank: longest.map(|RankWait { rank, .. }| rank),
            longest_wait_us: longest.map(|RankWait { lasted_us, .. }| lasted_us),
        }
    };
    let RankRecord { rank, nranks, operations, .. } = record;
    let operations = operations.iter().map(operation).collect();
    ShownRank { number, rank: *rank, nranks: *nranks, operations }
}

/// Microseconds that so many sends of a thousand do not exceed.
pub(crate) fn quantile_us(latency: &Histogram, per_mille: u64) -> Option<f64> {
    latency.quantile_ns(per_mille).map(in_us)
}

pub(crate) fn in_us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Returns the number of rails that work.
pub(crate) fn rails_up(record: &Record) -> u32 {
    u32::from(record.rail_count).saturating_sub(record.rails_down.count_ones())
}

/// Says in words what an end waits for.
pub(crate) fn waits_for(role: Role, view: &EndView) -> String {
    let EndView { begun, done, untested, .. } = view;
    match (role, view.wait) {
        _ if view.is_recovering => "new queue pairs".to_owned(),
        (Role::Sender, _) if begun > done && view.moves_in_calls => {
            format!("the network to take {} messages", begun - done)
        }
        (Role::Sender, _) if begun > done => {
            format!("the acknowledge of {} messages", begun - done)
        }
        (Role::Sender, Wait::Send { tag, len }) => {
            format!("a receive for its send of {len} bytes with tag {tag:#x}")
        }
        (_, Wait::Elsewhere(peer)) if !view.is_waiting => {
            format!("{peer}, on another connection")
        }
        // Ranks of a communicator post receives ahead, and leave requests that are done untested.
        _ if !view.is_waiting => "nothing".to_owned(),
        (Role::Receiver, _) if begun > done => format!("{} posted messages", begun - done),
        _ if *untested > 0 => format!("its program to test {untested} requests that are done"),
        _ => "nothing".to_owned(),
    }
}

fn list(all: impl Iterator<Item = Recorded>) -> String {
    let (mut text, mut has_dead) = (String::new(), false);
    for Recorded { path, header, is_alive, records, ranks, .. } in all {
        let state = if is_alive { "lives" } else { "has ended" };
        let waiting = records.iter().filter(|(_, record)| record.view.is_waiting).count();
        let (pid, count, ranks) = (header.process.pid, records.len(), ranks.len());
        let file = line(&path.display());
        let _ = writeln!(
            text,
            "{pid} {state}: {count} connections, {waiting} wait; {ranks} ranks; {file}"
        );
        has_dead |= !is_alive;
    }
    if text.is_empty() {
        return "no process has a flight recorder\n".to_owned();
    }
    if has_dead {
        text.push_str("you may remove the files of processes that have ended; the next process keeps the last 16\n");
    }
    text
}

fn details(shown: &Shown) -> String {
    let Shown { process, is_alive, damaged, connections, ranks, file, user, .. } = shown;
    let mut text = format!("{process} {}\n", if *is_alive { "lives" } else { "has ended" });
    if *user != rustix::process::geteuid().as_raw() {
        let _ = writeln!(text, "user {user} wrote this in {}", line(&file.display()));
    }
    if *damaged > 0 {
        let _ = writeln!(text, "{damaged} records are damaged");
    }
    for connection in connections {
        let ShownRecord { number, role, ends, looked_ms_ago, begun, done, untested, .. } =
            connection;
        let _ = writeln!(text, "\nconnection {number}, {role}: {ends}");
        let (first, second) = match *role {
            "sender" => ("sent", "acknowledged"),
            _ => ("posted", "arrived"),
        };
        let _ = writeln!(text, "  {begun} {first}, {done} {second}, {untested} done and untested");
        text.push_str(&numbers(connection));
        let _ = write!(text, "  waits for {}", connection.waits_for);
        if connection.is_waiting {
            let _ = write!(text, ", for {:.1} s", f64::from(connection.still_ms) / 1e3);
        }
        match looked_ms_ago {
            Some(ms) => _ = writeln!(text, "; last look {:.1} s ago", *ms as f64 / 1e3),
            None => text.push('\n'),
        }
        if !connection.verdict.is_empty() {
            let _ = writeln!(text, "  last verdict: {}", connection.verdict);
        }
        let events = connection.events.iter().map(|event| event.unix_ns);
        let messages = connection.messages.iter().map(|message| message.asked_unix_ns);
        // The times of events and of messages count back from the same time.
        let last = events.chain(messages).max().unwrap_or(0);
        for ShownEvent { unix_ns, what, begun, done, untested } in &connection.events {
            let at = seconds_after(last, *unix_ns);
            let _ = writeln!(
                text,
                "  {at:>10.3} s  {what:<16} {begun} {first}, {done} {second}, {untested} untested"
            );
        }
        message_details(connection, last, &mut text);
    }
    ranks.iter().for_each(|rank| rank_details(rank, &mut text));
    text
}

/// Returns the seconds by which a time is after `last`: none or a negative number.
fn seconds_after(last: i64, unix_ns: i64) -> f64 {
    // A minus in front of the whole would print -0.000.
    0.0 - last.saturating_sub(unix_ns) as f64 / 1e9
}

/// The numbers of a connection since it was made, in a line.
fn numbers(of: &ShownRecord) -> String {
    let ShownRecord { bytes, stalls, recoveries, rails_up, rails, .. } = of;
    let mut text = format!("  {bytes} bytes");
    if let (Some(p50), Some(p99)) = (of.p50_us, of.p99_us) {
        let waited = of.receive_wait_seconds;
        let _ =
            write!(text, ", p50 {p50:.1} us, p99 {p99:.1} us, waited {waited:.3} s for receives");
    }
    let _ = write!(text, ", {stalls} stalls, {recoveries} recoveries");
    if *rails > 0 {
        let _ = write!(text, ", {rails_up} of {rails} rails up");
    }
    text + "\n"
}

/// The messages of a connection, a line each. Their times count back from `last`.
fn message_details(connection: &ShownRecord, last: i64, text: &mut String) {
    let what = if connection.role == "sender" { "send" } else { "receive" };
    for message in &connection.messages {
        let ShownMessage { number, request, tag, bytes, waited_us, .. } = message;
        let at = seconds_after(last, message.asked_unix_ns);
        let _ = write!(
            text,
            "  {at:>13.6} s  {what} {number}: {bytes} bytes, tag {tag:#x}, request {request}: \
             waited {waited_us:.1} us"
        );
        let _ = match (message.took_us, message.untested_us) {
            (Some(took), Some(untested)) => {
                writeln!(text, ", took {took:.1} us, tested {untested:.1} us later")
            }
            (Some(took), None) => writeln!(text, ", took {took:.1} us, not tested"),
            (None, _) => writeln!(text, ", not done"),
        };
    }
}

fn rank_details(shown: &ShownRank, text: &mut String) {
    let ShownRank { number, rank, nranks, operations } = shown;
    let _ = writeln!(text, "\nrank {rank} of {nranks}, number {number}");
    let last = operations.last().map_or(0, |operation| operation.begun_unix_ns);
    for operation in operations {
        let ShownOperation { number, what, begun_unix_ns, took_us, waited_us, .. } = operation;
        let at = seconds_after(last, *begun_unix_ns);
        let took = took_us.map_or_else(|| "runs".to_owned(), |us| format!("{:.3} ms", us / 1e3));
        let waited = f64::from(*waited_us) / 1e3;
        let _ = write!(text, "  {at:>10.3} s  {number} {what}: {took}");
        let _ = match (operation.longest_wait_rank, operation.longest_wait_us) {
            (Some(rank), Some(us)) => writeln!(
                text,
                ", waited {waited:.3} ms, longest for rank {rank}: {:.3} ms",
                f64::from(us) / 1e3
            ),
            _ => writeln!(text),
        };
    }
}

#[cfg(test)]
mod tests {
    use invar_core::metrics::MemoryNumbers;
    use invar_core::recorder::Header;
    use invar_core::stall::Process;

    use super::*;

    #[test]
    fn events_and_messages_count_back_from_the_latest_of_both() {
        let (early, late) = (500_000_000, 2_000_000_000);
        for (event_ns, asked_ns, lines) in [
            (early, late, ["     -1.500 s  opened ", "      0.000000 s  send 0: "]),
            (late, early, ["      0.000 s  opened ", "     -1.500000 s  send 0: "]),
        ] {
            let process = Process::new(7, "host");
            let memory = MemoryNumbers::default();
            let header = Header { process, unix_offset_ns: 0, memory };
            let mut record = Record::new(Role::Sender, 1, "ends", EndView::default(), event_ns);
            record.note_messages(&[MessageTimes { asked_ns, ..MessageTimes::default() }]);
            let (path, records, ranks) = (PathBuf::new(), vec![(0, record)], Vec::new());
            let recorded =
                Recorded { path, user: 0, header, is_alive: false, records, ranks, damaged: 0 };
            let text = details(&shown(&recorded));
            assert!(lines.iter().all(|line| text.contains(line)), "{text}");
        }
    }
}
