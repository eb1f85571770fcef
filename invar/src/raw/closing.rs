//! How long receiving ends that close wait for their peers.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use invar_linux::clock;

use super::end::CLOSE_MAX;

/// Time for which a host counts as silent after an end has waited for it in vain.
const SILENT_NS: u64 = 1_000_000_000;

/// The silent hosts, with the times at which ends of this process have given them up.
static SILENT: Mutex<SilentHosts> = Mutex::new(SilentHosts(Vec::new()));

struct SilentHosts(Vec<(IpAddr, u64)>);

impl SilentHosts {
    fn has(&mut self, host: IpAddr, now_ns: u64) -> bool {
        self.0.retain(|(_, since_ns)| now_ns.saturating_sub(*since_ns) < SILENT_NS);
        self.0.iter().any(|(silent, _)| *silent == host)
    }

    fn add(&mut self, host: IpAddr, now_ns: u64) {
        self.0.push((host, now_ns));
    }
}

/// Calls `poll` until it returns `true`, at most for [`CLOSE_MAX`], for an end whose peer is on `host`. If `host` is
/// silent, calls `poll` once. So all ends of a dead host together wait about as long as one of them.
pub(super) fn wait(host: Option<IpAddr>, poll: impl FnMut() -> bool) {
    // This host is not dead. Its processes answer or not, each by itself.
    let host = host.filter(|host| !host.is_loopback());
    wait_for(&SILENT, host, clock::now_ns, poll);
}

fn wait_for(
    silent: &Mutex<SilentHosts>,
    host: Option<IpAddr>,
    now_ns: impl Fn() -> u64,
    mut poll: impl FnMut() -> bool,
) {
    let hosts = || silent.lock().unwrap_or_else(PoisonError::into_inner);
    let begun_ns = now_ns();
    let is_silent = host.is_some_and(|host| hosts().has(host, begun_ns));
    let within_ns = if is_silent { 0 } else { CLOSE_MAX.as_nanos() as u64 };
    while !poll() {
        let given_up_ns = now_ns();
        if given_up_ns - begun_ns >= within_ns {
            if let Some(host) = host
                && !is_silent
            {
                hosts().add(host, given_up_ns);
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MS: u64 = 1_000_000;

    /// The ends of a process that close one after the other.
    struct Ends {
        silent: Mutex<SilentHosts>,
        now_ns: Cell<u64>,
    }

    impl Ends {
        fn new() -> Self {
            Ends { silent: Mutex::new(SilentHosts(Vec::new())), now_ns: Cell::new(0) }
        }

        /// Closes an end of a peer on the host with this number. Each poll takes 10 ms, and the peer answers poll
        /// number `answers`. Returns the number of polls.
        fn close(&self, host: u8, answers: u32) -> u32 {
            let polls = Cell::new(0);
            let poll = || {
                self.now_ns.update(|now_ns| now_ns + 10 * MS);
                polls.update(|polls| polls + 1);
                polls.get() == answers
            };
            let host = IpAddr::from([192, 0, 2, host]);
            wait_for(&self.silent, Some(host), || self.now_ns.get(), poll);
            polls.get()
        }
    }

    const NEVER: u32 = 0;

    #[test]
    fn the_ends_of_a_host_that_does_not_answer_wait_once_and_those_of_others_wait_too() {
        let ends = Ends::new();
        assert_eq!(ends.close(1, NEVER), 10);
        assert_eq!([ends.close(1, NEVER), ends.close(1, NEVER)], [1, 1]);
        assert_eq!(ends.close(2, NEVER), 10);
        assert_eq!([ends.close(1, NEVER), ends.close(2, NEVER)], [1, 1]);
        ends.now_ns.update(|now_ns| now_ns + SILENT_NS);
        assert_eq!([ends.close(1, NEVER), ends.close(2, 3)], [10, 3]);
    }

    #[test]
    fn each_end_of_a_host_that_answers_is_waited_for() {
        let ends = Ends::new();
        assert_eq!([ends.close(1, 5), ends.close(1, 9), ends.close(1, 1)], [5, 9, 1]);
    }
}
