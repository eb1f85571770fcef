//! A socket that is lost goes on over a new connection, and no byte is lost or comes twice.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use invar_core::error::Error;
use invar_core::param::{AddressFamily, PortRange};
use invar_core::stall::{Cause, Role, StallSettings, Wait};
use invar_linux::clock::now_ns;
use invar_linux::socket::{Connecting, Listener};
use invar_linux::tcp::attend_renewals;
use invar_testkit::namespaces::Hosts;
use invar_testkit::wait::{throughout, until};

use crate::rig::{Pair, Receive, device_on, finish_connecting, settings};

const LAYOUTS: [(u16, u16); 3] = [(0, 0), (2, 0), (2, 2)];
const LENGTHS: [usize; 5] = [8, 4096, 5000, 100_000, 1_500_000];

/// Returns the ports of one end of each connection on the first host.
fn connections(hosts: &Hosts) -> BTreeSet<String> {
    let output = hosts.program(0, "ss").args(["-Htn", "state", "established"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let port =
        |line: &str| line.split_whitespace().nth(2).unwrap().rsplit(':').next().map(String::from);
    text.lines().filter_map(port).collect()
}

/// Resets the connections of a port, or all connections of the first host.
fn reset(hosts: &Hosts, port: Option<&str>) {
    let mut ss = hosts.program(0, "ss");
    ss.args(["-Ktn", "state", "established"]);
    if let Some(port) = port {
        ss.args(["sport", "=", &format!(":{port}")]);
    }
    assert!(ss.output().unwrap().status.success(), "ss -K");
}

/// The looks that a program's keeper makes.
fn look(pair: &mut Pair) -> Result<(), Error> {
    attend_renewals();
    pair.send.check_peer()?;
    pair.recv.check_peer()
}

/// Passes messages of many lengths, some in flight when `interrupt` is called.
fn pass(pair: &mut Pair, first: usize, mut interrupt: impl FnMut(usize)) {
    let seeds = first..first + 2 * LENGTHS.len();
    let len = |seed: usize| LENGTHS[seed % LENGTHS.len()];
    let receives: Vec<Receive> =
        seeds.clone().map(|seed| pair.recv(&[(len(seed), seed as u32)])).collect();
    let mut sends = Vec::new();
    for seed in seeds.clone() {
        let send = until("room for a message", || {
            look(pair).unwrap();
            for receive in &receives {
                let _ = pair.recv.is_done(&receive.request);
            }
            pair.isend(seed, len(seed), seed as u32).unwrap()
        });
        sends.push(send);
        interrupt(seed);
        let _ = pair.send.check_peer();
    }
    let mut sends: Vec<_> = sends.into_iter().map(Some).collect();
    let mut left: Vec<_> = receives.iter().map(Some).collect();
    until("the messages", || {
        look(pair).unwrap();
        for send in &mut sends {
            if let Some(request) = send
                && pair.send.test(request).unwrap().is_some()
            {
                *send = None;
            }
        }
        for receive in &mut left {
            if let Some(found) = receive
                && pair.recv.test(&found.request).unwrap().is_some()
            {
                *receive = None;
            }
        }
        sends.iter().all(Option::is_none) && left.iter().all(Option::is_none)
    });
    for (seed, receive) in seeds.zip(&receives) {
        pair.check(receive, 0, seed, len(seed));
    }
}

#[test]
fn connections_that_are_reset_lose_no_message_in_any_layout() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    hosts.call(0, || {
        for (lanes, threads) in LAYOUTS {
            let mut pair = Pair::new(lanes, threads);
            pass(&mut pair, 0, |_| {});
            for round in 1..6 {
                pass(&mut pair, 10 * round, |seed| {
                    if seed % 10 == 2 * round - 2 {
                        reset(&hosts, None);
                    }
                });
            }
            let times = pair.send.numbers().recoveries;
            assert!(times >= 5, "layout {lanes}, {threads}: {times} new connections");
            assert_eq!(pair.recv.numbers().recoveries, times);
        }
    });
}

#[test]
fn a_socket_that_alone_is_reset_takes_no_message_with_it() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    hosts.call(0, || {
        let mut pair = Pair::new(1, 0);
        pass(&mut pair, 0, |_| {});
        for round in 0..6 {
            let before = connections(&hosts);
            assert_eq!(before.len(), 4, "the ends of three sockets, at one port: {before:?}");
            let victim = before.iter().nth(round % 4).unwrap();
            pass(&mut pair, 10, |seed| {
                if seed == 13 {
                    reset(&hosts, Some(victim));
                }
            });
            assert_ne!(connections(&hosts), before);
        }
    });
}

#[test]
fn both_ways_go_on_after_their_shared_sockets_are_reset() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    hosts.call(0, || {
        for (lanes, threads) in LAYOUTS {
            let mut there = Pair::new(lanes, threads);
            let mut back =
                Pair::over(there.recv.way_back().unwrap(), there.send.way_back().unwrap());
            for round in 0..4 {
                pass(&mut there, 10 * round, |seed| {
                    if seed % 10 == 5 {
                        reset(&hosts, None);
                    }
                });
                pass(&mut back, 10 * round, |_| {});
            }
        }
    });
}

#[test]
fn a_message_whose_send_is_done_arrives_though_its_connection_is_reset() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    hosts.call(0, || {
        for (lanes, threads) in LAYOUTS {
            let mut pair = Pair::new(lanes, threads);
            for (seed, len) in LENGTHS.into_iter().enumerate() {
                let send = pair.send(seed, len, 0);
                // Nobody reads it.
                pair.finish(vec![send], &[]);
            }
            reset(&hosts, None);
            for (seed, len) in LENGTHS.into_iter().enumerate() {
                let receive = pair.recv(&[(len, 0)]);
                until("the message", || {
                    look(&mut pair).unwrap();
                    pair.recv.test(&receive.request).unwrap().map(<[u32]>::len)
                });
                pair.check(&receive, 0, seed, len);
            }
        }
    });
}

/// A connection from the second host to the first.
fn between(hosts: &Hosts, silence: Duration) -> Pair {
    let settings = invar_linux::socket::SocketSettings { silence, ..settings(0, 0) };
    let device = || device_on("=v0", AddressFamily::Inet);
    let mut listener =
        hosts.call(0, || Listener::bind(&device(), PortRange::ANY, &settings)).unwrap();
    let handle = listener.handle();
    let start = || Connecting::start(&device(), &handle, &settings, now_ns());
    let connecting = hosts.call(1, start).unwrap();
    hosts.call(0, || finish_connecting(connecting, &mut listener))
}

#[test]
fn a_network_that_was_out_for_seconds_is_used_soon_after_it_is_back() {
    const OUT: Duration = Duration::from_secs(6);
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let mut pair = between(&hosts, Duration::from_secs(60));
    hosts.call(1, || pass(&mut pair, 0, |_| {}));
    hosts.ip(0, "link set v0 down").unwrap();
    let mut send = Some(pair.send(7, 5000, 0));
    hosts.call(1, || {
        throughout(OUT, || {
            look(&mut pair).unwrap();
            // The kernel takes the message.
            send.take_if(|send| pair.send.test(send).unwrap().is_some());
        });
    });
    assert_eq!(send, None);
    hosts.ip(0, "link set v0 up").unwrap();
    let back = Instant::now();
    let receive = pair.recv(&[(5000, 0)]);
    hosts.call(1, || {
        until("the message", || {
            look(&mut pair).unwrap();
            pair.recv.test(&receive.request).unwrap().map(<[u32]>::len)
        });
    });
    pair.check(&receive, 0, 7, 5000);
    // The kernel would try again after as long as the network was out.
    assert!(back.elapsed() < OUT - Duration::from_secs(2), "{:?}", back.elapsed());
}

#[test]
fn a_host_that_does_not_come_back_is_an_error_within_the_time_for_recovery() {
    const WITHIN: Duration = Duration::from_secs(8);
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let mut pair = between(&hosts, WITHIN);
    hosts.call(1, || pass(&mut pair, 0, |_| {}));
    hosts.ip(0, "link set v0 down").unwrap();
    let out = Instant::now();
    let (mut sender, mut receiver) = (None, None);
    hosts.call(1, || {
        until("the errors", || {
            attend_renewals();
            sender = sender.or_else(|| pair.send.check_peer().err());
            receiver = receiver.or_else(|| pair.recv.check_peer().err());
            sender.is_some() && receiver.is_some()
        });
    });
    let took = out.elapsed();
    assert!(took < WITHIN + WITHIN / 2, "{took:?}: {sender:?}, {receiver:?}");
    for error in [sender, receiver] {
        assert!(matches!(error, Some(Error::Line(_))), "{error:?}");
    }
}

#[test]
fn a_send_that_waits_for_a_lost_host_is_said_to_be_that_hosts_fault() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let Pair { send, recv, .. } = between(&hosts, Duration::from_secs(60));
    // Later than the sender gives its connections up.
    let stall = StallSettings { after_ns: 3_000_000_000, ..StallSettings::default() };
    let mut pair = Pair::over(send.watching(stall), recv);
    hosts.call(1, || pass(&mut pair, 0, |_| {}));
    // Longer than the room that the kernel has.
    let len = 20_000_000;
    let receive = pair.recv(&[(len, 0)]);
    assert_eq!(pair.recv.test(&receive.request).unwrap(), None);
    let request = hosts.call(1, || {
        until("room for the message", || {
            look(&mut pair).unwrap();
            pair.isend(7, len, 0).unwrap()
        })
    });
    hosts.ip(0, "link set v0 down").unwrap();
    hosts.call(1, || {
        let end = Role::Receiver;
        until("the verdict", || {
            pair.send.check_peer().unwrap();
            assert_eq!(pair.send.test(&request).unwrap(), None);
            pair.send.called(Wait::Test, now_ns());
            pair.send.look_for_stall(now_ns());
            let verdict = pair.send.watch().verdict()?;
            (verdict.cause == Cause::HostGone { end }).then_some(())
        });
    });
}

#[test]
fn a_peer_that_closes_is_an_error_at_once() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    hosts.call(0, || {
        let mut pair = Pair::new(0, 0);
        pass(&mut pair, 0, |_| {});
        let Pair { send, .. } = Pair::new(0, 0);
        let closed = std::mem::replace(&mut pair.send, send);
        drop(closed);
        let receive = pair.recv(&[(10, 0)]);
        let closed = Instant::now();
        let error = until("the end", || pair.recv.test(&receive.request).err());
        assert!(matches!(error, Error::PeerClosed(_)), "{error}");
        assert!(closed.elapsed() < Duration::from_secs(1));
    });
}
