//! A trace of a progress thread, for Chrome and Perfetto (`profiler.cc`).

use std::io::Write;

use invar_core::proxy::{OpStage, Probe, ProxyEvent, ProxySlice};
use invar_core::topology::Direction;
use serde::Serialize;

use crate::clock::now_ns;

/// Writes a trace. All entries are flushed whenever the thread goes to sleep, and the end when the trace
/// is dropped. An error cuts the trace off.
///
/// The thread's line shows when the thread is idle, sleeps, and takes operations. Each slice of steps
/// has its own line, which shows what the slice waits for.
#[derive(Debug)]
pub struct ChromeTrace<W: Write> {
    out: W,
    pid: u32,
    /// The GPU's number, used as the thread id.
    tid: u32,
    begun: bool,
    /// Whether an error occurred; the trace writes nothing after an error.
    failed: bool,
}

/// One trace entry. `ph` is `B` or `E` for the begin and end on the thread's line, `b` or `e` for those
/// on another line.
#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    cat: &'a str,
    ph: char,
    /// Timestamp in microseconds.
    ts: f64,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Args {
    Appended {
        ops: u32,
    },
    Slice {
        #[serde(skip_serializing_if = "Option::is_none")]
        op_count: Option<u64>,
        peer: u32,
        channel: u16,
        step: u64,
    },
}

/// A step of a connection or of a link, as a trace shows it.
#[derive(Clone, Copy, Debug)]
pub struct TracedStep {
    /// Number of the step's connection or link, unique within the trace.
    pub connection: u32,
    /// Rank of the peer.
    pub peer: u32,
    /// Channel of the connection.
    pub channel: u16,
    /// Number of the step, counted since the connection was opened.
    pub step: u64,
    /// Number of the step's operation, if known.
    pub op_count: Option<u64>,
}

impl TracedStep {
    /// Returns an id that no other concurrent step has.
    fn id(&self) -> String {
        format!("{:x}.{:x}", self.connection, self.step)
    }
}

impl<W: Write> ChromeTrace<W> {
    /// Makes a trace of a GPU's progress thread.
    pub fn new(out: W, device: u32) -> Self {
        let pid = std::process::id();
        ChromeTrace { out, pid, tid: device, begun: false, failed: false }
    }

    fn write_raw(&mut self, text: &str) {
        self.failed = self.failed || self.out.write_all(text.as_bytes()).is_err();
    }

    fn write(&mut self, name: &str, cat: &str, ph: char, id: Option<String>, args: Option<Args>) {
        let ts = now_ns() as f64 / 1e3;
        let entry = Entry { name, cat, ph, ts, pid: self.pid, tid: self.tid, id, args };
        let between = if self.begun { ",\n" } else { "[\n" };
        self.begun = true;
        self.write_raw(between);
        self.failed = self.failed || serde_json::to_writer(&mut self.out, &entry).is_err();
    }

    /// Records that a step begins to wait, on the step's own line.
    pub fn begin_wait(&mut self, name: &str, step: &TracedStep) {
        let TracedStep { op_count, peer, channel, step: number, .. } = *step;
        let args = Args::Slice { op_count, peer, channel, step: number };
        self.write(name, "NET", 'b', Some(step.id()), Some(args));
    }

    /// Records that a step has what it waited for.
    pub fn end_wait(&mut self, name: &str, step: &TracedStep) {
        self.write(name, "NET", 'e', Some(step.id()), None);
    }

    /// Flushes all entries; an error cuts the trace off.
    pub fn flush(&mut self) {
        self.failed = self.failed || self.out.flush().is_err();
    }

    fn slice(&mut self, step: &ProxySlice, stage: OpStage) {
        let stages = OpStage::of(step.direction);
        let before = stages.iter().rev().find(|before| **before < stage);
        let traced = TracedStep {
            connection: step.connection.0,
            peer: step.peer,
            channel: step.channel,
            step: step.step,
            op_count: Some(step.op_count),
        };
        if let Some(name) = before.and_then(|before| waits_after(step.direction, *before)) {
            self.end_wait(name, &traced);
        }
        if let Some(name) = waits_after(step.direction, stage) {
            self.begin_wait(name, &traced);
        }
    }
}

impl<W: Write> Drop for ChromeTrace<W> {
    fn drop(&mut self) {
        self.write_raw(if self.begun { "\n]\n" } else { "[]\n" });
        if !self.failed {
            // Nobody can receive the error here.
            let _ = self.out.flush();
        }
    }
}

/// Returns NCCL's name for the wait of a slice after a stage.
fn waits_after(direction: Direction, stage: OpStage) -> Option<&'static str> {
    Some(match (direction, stage) {
        (_, OpStage::Complete) => return None,
        (Direction::Send, OpStage::Transmit) => "SendWait",
        (Direction::Send, _) => "SendGPUWait",
        (Direction::Recv, OpStage::Post) => "RecvWait",
        (Direction::Recv, OpStage::Receive) => "RecvFlushWait",
        (Direction::Recv, _) => "RecvGPUWait",
    })
}

impl<W: Write> Probe for ChromeTrace<W> {
    fn record(&mut self, event: ProxyEvent) {
        let mut thread = |name, ph, args| self.write(name, "PROXY", ph, None, args);
        match event {
            ProxyEvent::Sleep => {
                thread("Sleep", 'B', None);
                self.flush();
            }
            ProxyEvent::Wakeup => thread("Sleep", 'E', None),
            ProxyEvent::Idle => thread("Idle", 'B', None),
            ProxyEvent::Active => thread("Idle", 'E', None),
            ProxyEvent::Append => thread("Append", 'B', None),
            ProxyEvent::AppendEnd { ops } => thread("Append", 'E', Some(Args::Appended { ops })),
            ProxyEvent::Step { step, stage } => self.slice(&step, stage),
        }
    }
}
