//! Tests ECE: what the drivers of both ends agree on beyond the verbs while they connect.

use invar_core::conn::{CommSettings, Wire};
use invar_core::error::Error;
use invar_core::nic::{Ece, Verb};
use invar_testkit::duo;
use invar_testkit::null::NullNic;

use crate::meddler::Meddler;

const VENDOR: u32 = 0x15b3;

/// Two NICs whose drivers have these ECE capabilities: vendor and options.
fn nics(eces: [Option<(u32, u32)>; 2]) -> [Meddler; 2] {
    let nics = NullNic::ports::<2>().map(Meddler::new);
    for (nic, ece) in nics.iter().zip(eces) {
        let ece = ece.map(|(vendor_id, options)| Ece { vendor_id, options, comp_mask: 0 });
        nic.plan.ece.set(ece);
    }
    nics
}

/// The ECE vendor and options that each driver is told for each queue pair while the ends connect.
fn told(nics: &[Meddler; 2], settings: [CommSettings; 2]) -> [Vec<(u32, u32)>; 2] {
    let [a, b] = nics;
    let duo = duo::connect([a, b], settings, || {});
    drop(duo.expect("a connection"));
    let of = |ece: &Ece| (ece.vendor_id, ece.options);
    [a, b].map(|nic| nic.plan.eces_set.borrow().iter().map(of).collect())
}

fn usual() -> CommSettings {
    CommSettings { qps: 2, ..CommSettings::default() }
}

#[test]
fn the_acceptor_learns_the_offer_and_the_connector_what_is_left_of_it() {
    let nics = nics([Some((VENDOR, 0b0111)), Some((VENDOR, 0b1110))]);
    let [connector, acceptor] = told(&nics, [usual(); 2]);
    assert_eq!(acceptor, [(VENDOR, 0b0111); 2]);
    assert_eq!(connector, [(VENDOR, 0b0110); 2]);
}

#[test]
fn drivers_are_told_nothing_unless_both_ends_know_of_it() {
    let (ours, off) = (Some((VENDOR, 7)), CommSettings { ece: false, ..usual() });
    let nccl = CommSettings { wire: Wire::Nccl214, ..usual() };
    let cases = [
        ([ours, None], [usual(); 2]),
        ([None, ours], [usual(); 2]),
        ([ours, Some((VENDOR + 1, 7))], [usual(); 2]),
        ([ours, ours], [off, usual()]),
        ([ours, ours], [usual(), off]),
        ([ours, ours], [nccl; 2]),
    ];
    for (eces, settings) in cases {
        assert_eq!(told(&nics(eces), settings), [vec![], vec![]], "{eces:?}, {settings:?}");
    }
}

#[test]
fn a_driver_that_refuses_is_told_by_the_verbs_name() {
    let nics = nics([Some((VENDOR, 7)); 2]);
    nics[1].plan.failing.set(Some(Verb::SetEce));
    let [a, b] = &nics;
    let error = duo::connect([a, b], [usual(); 2], || {}).err().expect("an error");
    assert!(matches!(error, Error::Nic(error) if error.verb == Verb::SetEce), "{error}");
}
