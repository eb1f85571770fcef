//! Records when the links of a rank were in which state (`INVAR_PROXY_TRACE`).

use std::fs::File;
use std::io::BufWriter;
use std::sync::{Arc, Mutex, PoisonError};

use invar_core::topology::Direction;
use invar_linux::proxy::{ChromeTrace, TracedStep};

use super::NetSettings;
use super::id::{EndId, LinkId};
use crate::Error;

/// The trace of one rank. Clones write to the same file.
#[derive(Clone)]
pub(super) struct LinkTrace(Arc<Mutex<ChromeTrace<BufWriter<File>>>>);

impl LinkTrace {
    /// Creates the trace's file, a different one for each rank of each communicator. In `path`, `%c` stands for the
    /// communicator and `%r` for the rank. A number that `path` does not ask for follows the name.
    pub(super) fn create(path: &str, settings: &NetSettings) -> Result<Self, Error> {
        let NetSettings { communicator, rank, device, .. } = *settings;
        let mut path = path.to_owned();
        for (stands, number) in [("%c", format!("{communicator:016x}")), ("%r", rank.to_string())] {
            path = match path.contains(stands) {
                true => path.replace(stands, &number),
                false => format!("{path}.{number}"),
            };
        }
        let file = File::create(&path).map_err(|error| {
            Error::io(format_args!("INVAR_PROXY_TRACE: creating {path}"), error)
        })?;
        let trace = ChromeTrace::new(BufWriter::new(file), device);
        Ok(LinkTrace(Arc::new(Mutex::new(trace))))
    }

    /// Records that the counts of an end change from `before` to `now`.
    #[cold]
    pub(super) fn record(&self, end: &EndId, before: [u64; 3], now: [u64; 3]) {
        if before == now {
            return;
        }
        // If a thread panicked while it held the lock, the trace lacks at most one entry.
        let mut trace = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let EndId { number, link: LinkId { peer, channel }, direction } = *end;
        let states = states(direction);
        for (count, (before, now)) in before.into_iter().zip(now).enumerate() {
            for step in before..now {
                let step = TracedStep { connection: number, peer, channel, step, op_count: None };
                if let Some(ended) = count.checked_sub(1) {
                    trace.end_wait(states[ended], &step);
                }
                if let Some(begun) = states.get(count) {
                    trace.begin_wait(begun, &step);
                }
            }
        }
        // After each change the file has all entries, even if the process is killed.
        trace.flush();
    }
}

/// The names, as in NCCL, of two waits of a message: after it is requested, and after it is started.
fn states(direction: Direction) -> [&'static str; 2] {
    match direction {
        Direction::Send => ["SendPeerWait", "SendWait"],
        Direction::Recv => ["RecvWait", "RecvGPUWait"],
    }
}
