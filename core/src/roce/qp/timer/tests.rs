use super::*;

#[test]
fn ack_timeouts_are_those_of_the_table() {
    // Expected timeouts in microseconds.
    let table = [
        8.192, 16.384, 32.768, 65.536, 131.072, 262.144, 524.288, 1048.576, 2097.152, 4194.304,
        8388.608, 16777.22, 33554.43, 67108.86, 134217.7, 268435.5, 536870.9, 1073742.0, 2147484.0,
        4294967.0, 8589935.0, 17179869.0, 34359738.0, 68719477.0, 137e6, 275e6, 550e6, 1100e6,
        2200e6, 4400e6, 8800e6,
    ];
    assert_eq!(ack_timeout_ns(0), None);
    for (code, us) in (1..).zip(table) {
        let ns = ack_timeout_ns(code).unwrap() as f64;
        assert!((ns / 1e3 / us - 1.0).abs() < 4e-3, "code {code}: {ns} ns, not {us} µs");
    }
}

#[test]
fn rnr_timers_are_those_of_the_table() {
    // Expected waits in units of 10 µs, for the codes 0 to 31.
    let table = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    for (code, wait) in (0..).zip(table) {
        assert_eq!(rnr_timer_ns(code), wait * 10_000, "code {code}");
        assert_eq!(rnr_timer_ns(code | 0xe0), wait * 10_000, "code {code}");
    }
}

fn timer(timeout: u8, retry_cnt: u8, rnr_retry: u8, probe_ns: u64) -> AckTimer {
    let mut timer = AckTimer::default();
    timer.set_tuning(&Tuning { probe_ns, ..Tuning::default() });
    timer.start(&RtsAttr { timeout, retry_cnt, rnr_retry, ..RtsAttr::default() });
    timer
}

const QPN: u32 = 7;

/// Runs the timer of a queue pair without a peer and returns the actions it asked for, with their times.
fn run_as(qpn: u32, timer: &mut AckTimer, events: usize) -> std::vec::Vec<(u64, Expired)> {
    let mut seen = std::vec::Vec::new();
    while seen.len() < events {
        let Some(now) = timer.deadline_ns() else { break };
        let expired = timer.expire(now, qpn).unwrap();
        seen.push((now, expired));
        if expired == Expired::RetriesExceeded {
            break;
        }
    }
    seen
}
extern crate std;

fn run(timer: &mut AckTimer, events: usize) -> std::vec::Vec<(u64, Expired)> {
    run_as(QPN, timer, events)
}

/// Returns the time of the probe that follows one at `now`.
fn next_probe(now: u64, step_ns: u64) -> u64 {
    now + step_ns + spread_ns(now, QPN, step_ns / 4)
}

#[test]
fn probes_double_within_each_timeout_and_use_up_no_retry() {
    let ms = 1_000_000;
    let timeout_ns = ack_timeout_ns(14).unwrap();
    let mut timer = timer(14, 1, 7, 8 * ms);
    timer.on_transmit(0);
    use Expired::{Probe, RetriesExceeded, Timeout};
    let mut expected = std::vec::Vec::new();
    for (start, end) in [(0, Timeout), (timeout_ns, RetriesExceeded)] {
        let second = next_probe(start + 8 * ms, 16 * ms);
        expected.extend([(start + 8 * ms, Probe), (second, Probe)]);
        expected.extend([(next_probe(second, 32 * ms), Probe), (start + timeout_ns, end)]);
    }
    assert_eq!(run(&mut timer, 100), expected);
}

#[test]
fn queue_pairs_that_lost_packets_together_probe_at_different_times() {
    let ms = 1_000_000;
    let mut second_and_third = std::collections::BTreeSet::new();
    for qpn in 0..100 {
        let mut timer = timer(14, 1, 7, 8 * ms);
        timer.on_transmit(0);
        let at: std::vec::Vec<u64> = run_as(qpn, &mut timer, 3).iter().map(|(at, _)| *at).collect();
        assert!((16 * ms..20 * ms).contains(&(at[1] - at[0])), "{at:?}");
        assert!((32 * ms..40 * ms).contains(&(at[2] - at[1])), "{at:?}");
        second_and_third.extend([at[1] / 1000, at[2] / 1000]);
    }
    // Two of 100 times within 4 ms may share a microsecond.
    assert!(second_and_third.len() > 150, "{}", second_and_third.len());
}

#[test]
fn probes_of_a_late_acknowledge_come_ever_later_until_it_counts_as_silence() {
    let ms = 1_000_000;
    let mut timer = timer(0, 0, 0, 8 * ms);
    timer.set_late(ms);
    timer.on_transmit(0);
    use Expired::{Late, Probe};
    let second = next_probe(ms, ms);
    let third = next_probe(second, 2 * ms);
    // The fourth probe comes when the silence begins, since its wait would end later.
    let expected = [(ms, Late), (second, Late), (third, Late), (8 * ms, Probe)];
    assert_eq!(run(&mut timer, 4), expected);
    assert_eq!(run(&mut timer, 1), [(next_probe(8 * ms, 8 * ms), Probe)]);
    // An answer from the peer makes the next probe leave as soon as the first.
    timer.on_nak(25 * ms);
    assert_eq!(run(&mut timer, 2), [(26 * ms, Late), (next_probe(26 * ms, ms), Late)]);
    timer.set_late(100 * ms);
    timer.on_progress(30 * ms, true);
    assert_eq!(run(&mut timer, 1), [(38 * ms, Probe)]);
}

#[test]
fn a_timeout_below_the_probe_is_as_the_standard_has_it() {
    let mut timer = timer(1, 3, 7, 8_000_000);
    timer.on_transmit(100);
    use Expired::{RetriesExceeded, Timeout};
    let expected = [
        (100 + 8192, Timeout),
        (100 + 2 * 8192, Timeout),
        (100 + 3 * 8192, Timeout),
        (100 + 4 * 8192, RetriesExceeded),
    ];
    assert_eq!(run(&mut timer, 100), expected);
}

#[test]
fn a_timeout_below_the_least_counts_as_the_least_and_others_stay() {
    let least = ack_timeout_ns(13).unwrap();
    let tuning = Tuning { ack_timeout_ns_min: least, ..Tuning::default() };
    for (timeout, ns) in [(0, None), (1, Some(least)), (12, Some(least)), (14, Some(2 * least))] {
        let mut timer = AckTimer::default();
        timer.set_tuning(&tuning);
        timer.start(&RtsAttr { timeout, retry_cnt: 1, ..RtsAttr::default() });
        assert_eq!(timer.retry_time_ns(), ns.map(|ns| 2 * ns), "timeout {timeout}");
    }
}

#[test]
fn without_a_timeout_probes_go_on_for_ever_ever_rarer() {
    let mut timer = timer(0, 0, 0, 600_000_000);
    timer.on_transmit(0);
    let mut at = [600_000_000; 4];
    for i in 1..4 {
        at[i] = next_probe(at[i - 1], 1_000_000_000);
    }
    assert_eq!(run(&mut timer, 4), at.map(|at| (at, Expired::Probe)));
}

#[test]
fn progress_reloads_the_retries_and_naks_do_not() {
    let mut timer = timer(1, 1, 7, u64::MAX);
    timer.on_transmit(0);
    assert_eq!(timer.expire(8192, QPN), Some(Expired::Timeout));
    timer.on_nak(10_000);
    assert_eq!(timer.deadline_ns(), Some(2 * 8192));
    timer.on_progress(12_000, true);
    assert_eq!(timer.expire(12_000 + 8192, QPN), Some(Expired::Timeout));
    assert_eq!(timer.expire(12_000 + 2 * 8192, QPN), Some(Expired::RetriesExceeded));
    timer.on_progress(30_000, false);
    assert_eq!(timer.deadline_ns(), None);
}

#[test]
fn rnr_retries_are_counted_unless_there_are_seven() {
    let mut counted = timer(14, 7, 2, 8_000_000);
    counted.on_transmit(0);
    for at in [0, 10] {
        assert!(counted.on_rnr_nak(at, 1));
        assert_eq!(counted.deadline_ns(), Some(at + 10_000));
        assert_eq!(counted.expire(at + 10_000, QPN), Some(Expired::RnrOver));
        counted.on_transmit(at + 10_000);
    }
    assert!(!counted.on_rnr_nak(20, 1));
    let mut for_ever = timer(14, 7, 7, 8_000_000);
    for _ in 0..100 {
        assert!(for_ever.on_rnr_nak(0, 1));
    }
}

#[test]
fn a_receiver_that_is_not_ready_is_alive() {
    let mut timer = timer(1, 1, 7, u64::MAX);
    timer.on_transmit(0);
    assert_eq!(timer.expire(8192, QPN), Some(Expired::Timeout));
    timer.on_rnr_nak(9000, 1);
    assert_eq!(timer.expire(9000 + 10_000, QPN), Some(Expired::RnrOver));
    timer.on_transmit(20_000);
    assert_eq!(timer.expire(20_000 + 8192, QPN), Some(Expired::Timeout));
    assert_eq!(timer.expire(20_000 + 2 * 8192, QPN), Some(Expired::RetriesExceeded));
}
