//! Connections recover although their ends make no calls.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use invar::raw::Keeper;
use invar::{Device, Handle, Listener, MemoryRegion, SendComm, Settings};
use invar_testkit::library::{self, content};
use invar_testkit::namespaces::{Hosts, IPV4};
use invar_testkit::pattern::pattern;
use invar_testkit::wait::until;

/// The time for which the cable is out: longer than all retries of a queue pair.
const OUTAGE: Duration = Duration::from_millis(1500);
/// Without help, the connections would fail after 60 s.
const BOUND: Duration = Duration::from_secs(30);
const BYTES: usize = 64;

/// A message between the threads that play the hosts.
enum Note {
    Handle(Handle),
    Posted,
    Seen,
    CableIsOut,
}

fn device(host: usize, settings: &Settings) -> Device {
    Device::open_at_for(IPV4[host].parse::<IpAddr>().unwrap(), settings).unwrap()
}

/// Sends on one connection while the cable is out, then waits for the other connection only.
fn first(settings: &Settings, (notes, peer): (Sender<Note>, Receiver<Note>)) {
    let device = device(0, settings);
    let memory = MemoryRegion::new(&device, 2 * BYTES).unwrap();
    memory.write_at(0, &pattern(1, BYTES)).unwrap();
    let Ok(Note::Handle(handle)) = peer.recv() else { panic!("no handle") };
    let mut there = SendComm::connect(&device, &handle, settings).unwrap().wait().unwrap();
    let listener = Listener::bind(&device, settings).unwrap();
    notes.send(Note::Handle(listener.handle())).unwrap();
    let mut back = until("a peer", || listener.accept().unwrap()).wait().unwrap();
    let Ok(Note::Posted) = peer.recv() else { panic!("no receive") };
    // The slot arrives at once.
    thread::sleep(Duration::from_millis(200));
    notes.send(Note::Seen).unwrap();
    let Ok(Note::CableIsOut) = peer.recv() else { panic!("no outage") };
    let send = there.isend(&memory, 0..BYTES, 1).unwrap().unwrap();
    assert_eq!(back.recv(&memory, BYTES..2 * BYTES, 2, BOUND).unwrap(), BYTES);
    there.wait(&send, BOUND).unwrap();
}

/// Waits for the message and answers on the other connection.
fn second(settings: &Settings, (notes, peer): (Sender<Note>, Receiver<Note>)) {
    let device = device(1, settings);
    let memory = MemoryRegion::new(&device, BYTES).unwrap();
    let listener = Listener::bind(&device, settings).unwrap();
    notes.send(Note::Handle(listener.handle())).unwrap();
    let mut there = until("a peer", || listener.accept().unwrap()).wait().unwrap();
    let Ok(Note::Handle(handle)) = peer.recv() else { panic!("no handle") };
    let mut back = SendComm::connect(&device, &handle, settings).unwrap().wait().unwrap();
    let receive = there.irecv(&[(&memory, 0..BYTES, 1)]).unwrap().unwrap();
    notes.send(Note::Posted).unwrap();
    assert_eq!(there.wait(&receive, BOUND).unwrap().sizes(), [BYTES]);
    assert_eq!(content(&memory, BYTES), pattern(1, BYTES));
    back.send(&memory, 0..BYTES, 2, BOUND).unwrap();
}

#[test]
fn a_send_that_nobody_tests_arrives_after_the_cable_was_out() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let hosts = &hosts;
    let settings = library::settings(&[("INVAR_TRANSPORT", "soft"), ("NCCL_IB_TIMEOUT", "13")]);
    let settings = &settings;
    // A keeper of one namespace does not see the other one's ports.
    let _elsewhere = hosts.call(1, Keeper::of_namespace).unwrap();
    let (to_first, first_hears) = channel();
    let (to_second, second_hears) = channel();
    let (to_cable, cable_hears) = channel();
    thread::scope(|scope| {
        let from_first = to_second.clone();
        let first = scope.spawn(move || {
            // The cable's thread passes the notes on.
            hosts.call(0, || first(settings, (to_cable, first_hears)));
        });
        let from_second = to_first.clone();
        let second =
            scope.spawn(move || hosts.call(1, || second(settings, (from_second, second_hears))));
        for note in cable_hears {
            if let Note::Seen = note {
                hosts.ip(0, "link set v0 down").unwrap();
                to_first.send(Note::CableIsOut).unwrap();
                thread::sleep(OUTAGE);
                hosts.ip(0, "link set v0 up").unwrap();
            } else {
                from_first.send(note).unwrap();
            }
        }
        first.join().unwrap();
        second.join().unwrap();
    });
}
