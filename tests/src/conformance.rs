//! What a NIC must do for Invar to run on it, as one call for whoever ports one.
//!
//! ```
//! use invar_testkit::conformance::Testbed;
//! use invar_testkit::nic_conformance;
//! use invar_testkit::null::NullNic;
//!
//! nic_conformance(|| Testbed { ports: NullNic::ports(), pass: Box::new(|ns| ns) }, &[]);
//! ```
//!
//! The checks are those of the verbs' rules that the protocol leans on, then the protocol itself
//! with all answers checked. Every one runs on a testbed of its own. They begin with the least: the
//! first that fails is the one to look at.

mod comms;
mod errors;
mod queues;
mod readiness;
mod resources;
mod states;
mod transfers;

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::thread;
use std::time::{Duration, Instant};

use invar_core::nic::{Nic, QpOptions, RtsAttr, Wc, WcStatus};

use crate::end::{End, Link};

/// How long anything may take, in the testbed's time.
const PATIENCE_NS: u64 = 10_000_000_000;
/// After how long without a completion there will be none.
const QUIET_NS: u64 = 20_000_000;
/// How long to leave the NIC alone between two looks.
const STEP_NS: u64 = 20_000;

/// Two ports that can reach each other, and how to let time go by.
pub struct Testbed<N> {
    /// The ports. They may be of one device.
    pub ports: [N; 2],
    /// Lets at least so many nanoseconds go by, and says how many did: moves the clock where time
    /// is not real. A NIC whose work is done within each call has nothing to do.
    pub pass: Box<dyn FnMut(u64) -> u64>,
}

impl<N> Testbed<N> {
    /// Of NICs that work in real time.
    pub fn in_real_time(ports: [N; 2]) -> Self {
        let pass = |ns| {
            let start = Instant::now();
            thread::sleep(Duration::from_nanos(ns));
            start.elapsed().as_nanos() as u64
        };
        Testbed { ports, pass: Box::new(pass) }
    }
}

/// Runs every check on testbeds that `make` makes, but for those in `except`, by which a NIC is
/// known to depart from the rules.
///
/// # Panics
/// With all checks that failed, and why; with an exception that is no check.
pub fn nic_conformance<N: Nic + Clone>(mut make: impl FnMut() -> Testbed<N>, except: &[&str]) {
    let checks = [
        states::checks(),
        transfers::checks(),
        queues::checks(),
        errors::checks(),
        readiness::checks(),
        resources::checks(),
        comms::checks(),
    ];
    let (excepted, checks): (Vec<_>, Vec<_>) =
        checks.into_iter().flatten().partition(|(name, _)| except.contains(name));
    assert_eq!(excepted.len(), except.len(), "these are not all checks: {except:?}");
    let mut failures = Vec::new();
    for (name, check) in checks {
        let bench = &mut Bench(make());
        match panic::catch_unwind(AssertUnwindSafe(|| check(bench))) {
            Ok(Ok(())) => {}
            Ok(Err(why)) => failures.push(format!("{name}: {why}")),
            Err(_) => failures.push(format!("{name}: it panics, as said above")),
        }
    }
    assert!(failures.is_empty(), "the NIC fails these checks:\n  {}", failures.join("\n  "));
}

/// What must be so, and how to see it.
type Check<N> = (&'static str, fn(&mut Bench<N>) -> Verdict);
type Verdict<T = ()> = Result<T, String>;

/// Fails a check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err(format!($($why)+));
        }
    };
}
use ensure;

/// Fails a check unless both values are equal.
fn equal<T: PartialEq + fmt::Debug>(what: &str, got: T, want: T) -> Verdict {
    if got == want { Ok(()) } else { Err(format!("{what}: {got:?} instead of {want:?}")) }
}

/// A testbed in use.
struct Bench<N>(Testbed<N>);

impl<N: Nic + Clone> Bench<N> {
    fn nics(&self) -> [&N; 2] {
        let [a, b] = &self.0.ports;
        [a, b]
    }

    fn pass(&mut self, ns: u64) -> u64 {
        let passed_ns = (self.0.pass)(ns);
        self.nics().into_iter().for_each(N::progress);
        passed_ns
    }

    /// What both ports can do, with timeouts short enough for a test.
    fn link(&self) -> Verdict<Link> {
        let options = QpOptions::ICRC_MASKS_IP_ID;
        let mut link = Link { options, ..Link::default() };
        for nic in self.nics() {
            let port = nic.query_port().map_err(|error| error.to_string())?;
            link.mtu = link.mtu.min(port.active_mtu);
            link.options &= port.options;
        }
        Ok(link)
    }

    /// Two ends of a connection with `len` bytes each.
    fn pair(&self, len: usize) -> Verdict<[End<N>; 2]> {
        Ok(End::pair(self.nics(), len, &self.link()?))
    }

    /// The same, which gives up a dead or unready peer soon.
    fn hasty_pair(&self, len: usize) -> Verdict<[End<N>; 2]> {
        let rts = RtsAttr { timeout: 12, retry_cnt: 1, rnr_retry: 1, ..Link::default().rts };
        Ok(End::pair(self.nics(), len, &Link { rts, ..self.link()? }))
    }

    /// Waits until `ask` has an answer.
    fn await_some<T>(
        &mut self,
        what: &str,
        mut ask: impl FnMut() -> Verdict<Option<T>>,
    ) -> Verdict<T> {
        let mut waited_ns = 0;
        while waited_ns < PATIENCE_NS {
            if let Some(answer) = ask()? {
                return Ok(answer);
            }
            waited_ns += self.pass(STEP_NS);
        }
        Err(format!("{what} did not come within {} s", PATIENCE_NS / 1_000_000_000))
    }

    /// The next completion of an end, whatever it says.
    fn completion(&mut self, end: &End<N>, what: &str) -> Verdict<Wc> {
        self.await_some(what, || {
            let mut wcs = [Wc::default()];
            let n = poll(end, &mut wcs)?;
            Ok((n == 1).then_some(wcs[0]))
        })
    }

    /// The next completion, which must be of that work request and a success.
    fn success(&mut self, end: &End<N>, what: &str, wr_id: u64) -> Verdict<Wc> {
        let wc = self.completion(end, what)?;
        equal(
            &format!("{what}: wr_id and status"),
            (wc.wr_id, wc.status),
            (wr_id, WcStatus::SUCCESS),
        )?;
        equal(&format!("{what}: qp_num"), wc.qp_num, end.nic.qp_num(&end.qp))?;
        Ok(wc)
    }

    /// The next completion, which must be of that work request and in error.
    fn failure(&mut self, end: &End<N>, what: &str, wr_id: u64, status: &[WcStatus]) -> Verdict {
        let wc = self.completion(end, what)?;
        equal(&format!("{what}: wr_id"), wc.wr_id, wr_id)?;
        equal(&format!("{what}: qp_num"), wc.qp_num, end.nic.qp_num(&end.qp))?;
        ensure!(status.contains(&wc.status), "{what}: {:?} instead of {status:?}", wc.status);
        Ok(())
    }

    /// That an end has no completion, and gets none.
    fn quiet(&mut self, end: &End<N>, what: &str) -> Verdict {
        let mut waited_ns = 0;
        while waited_ns < QUIET_NS {
            let mut wcs = [Wc::default()];
            ensure!(poll(end, &mut wcs)? == 0, "{what}: there is a completion: {:?}", wcs[0]);
            waited_ns += self.pass(STEP_NS);
        }
        Ok(())
    }
}

fn poll<N: Nic + Clone>(end: &End<N>, wcs: &mut [Wc]) -> Verdict<usize> {
    let n = end.nic.poll(&end.cq, wcs).map_err(|error| format!("poll: {error:?}"))? as usize;
    ensure!(n <= wcs.len(), "a poll for {} completions gave {n}", wcs.len());
    Ok(n)
}

/// Bytes that differ from place to place, and from seed to seed.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i ^ seed << 7).wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}
