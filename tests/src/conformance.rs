//! Checks in one call whether a NIC does everything that Invar needs. Run it if you port a NIC.
//!
//! ```
//! use invar_testkit::conformance::Testbed;
//! use invar_testkit::nic_conformance;
//! use invar_testkit::null::NullNic;
//!
//! nic_conformance(|| Testbed { ports: NullNic::ports(), pass: Box::new(|ns| ns) }, &[]);
//! ```
//!
//! The first checks cover the verbs' rules that the protocol relies on. The last run the protocol
//! itself and check every answer. Each check runs on a testbed of its own. The simplest checks come
//! first, so look at the first failure first.

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

/// The longest time that an operation may take, in the testbed's time.
const TIMEOUT_NS: u64 = 10_000_000_000;
/// If no completion arrives within this time, none will.
const QUIET_NS: u64 = 20_000_000;
/// The time between two polls.
const STEP_NS: u64 = 20_000;

/// Two ports that can reach each other, and a way to let time pass.
pub struct Testbed<N> {
    /// The ports. They may be of one device.
    pub ports: [N; 2],
    /// Lets at least the given number of nanoseconds pass and returns how many did. A simulated NIC
    /// advances its clock here. A NIC that finishes its work within each call has nothing to do.
    pub pass: Box<dyn FnMut(u64) -> u64>,
}

impl<N> Testbed<N> {
    /// A testbed of NICs that work in real time.
    pub fn in_real_time(ports: [N; 2]) -> Self {
        let pass = |ns| {
            let start = Instant::now();
            thread::sleep(Duration::from_nanos(ns));
            start.elapsed().as_nanos() as u64
        };
        Testbed { ports, pass: Box::new(pass) }
    }
}

/// Runs every check on testbeds that `make` creates. It leaves out the checks named in `except`, by
/// which the NIC is known to depart from the rules.
///
/// # Panics
/// Panics with all checks that failed, and why. Panics if `except` names no check.
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

/// Checks that every operation moves messages of these sizes whole between two ends that `link` connects.
///
/// # Panics
/// Panics with the first transfer that fails, and why.
pub fn check_transfers<N: Nic + Clone>(testbed: Testbed<N>, link: &Link, sizes: &[usize]) {
    transfers::transfers(&mut Bench(testbed), link, sizes).unwrap_or_else(|why| panic!("{why}"));
}

/// The rule that a check tests, and the function that tests it.
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

    /// The best link that both ports support, with timeouts short enough for a test.
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

    /// Two connected ends with `len` bytes each.
    fn pair(&self, len: usize) -> Verdict<[End<N>; 2]> {
        Ok(End::pair(self.nics(), len, &self.link()?))
    }

    /// Two connected ends with `len` bytes each, which give up a dead or unready peer soon.
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
        while waited_ns < TIMEOUT_NS {
            if let Some(answer) = ask()? {
                return Ok(answer);
            }
            waited_ns += self.pass(STEP_NS);
        }
        Err(format!("{what} did not come within {} s", TIMEOUT_NS / 1_000_000_000))
    }

    /// The next completion of an end, whatever its status.
    fn completion(&mut self, end: &End<N>, what: &str) -> Verdict<Wc> {
        self.await_some(what, || {
            let mut wcs = [Wc::default()];
            let n = poll(end, &mut wcs)?;
            Ok((n == 1).then_some(wcs[0]))
        })
    }

    /// The next completion, which must be a success of the work request `wr_id`.
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

    /// The next completion, which must report the work request `wr_id` with one of the errors `status`.
    fn failure(&mut self, end: &End<N>, what: &str, wr_id: u64, status: &[WcStatus]) -> Verdict {
        let wc = self.completion(end, what)?;
        equal(&format!("{what}: wr_id"), wc.wr_id, wr_id)?;
        equal(&format!("{what}: qp_num"), wc.qp_num, end.nic.qp_num(&end.qp))?;
        ensure!(status.contains(&wc.status), "{what}: {:?} instead of {status:?}", wc.status);
        Ok(())
    }

    /// Checks that an end has no completion and gets none.
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
