use proptest::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::*;
use crate::roce::{Opcode, Psn};

/// Decodes bytes into a value and encodes the value again.
fn again<V, W>(bytes: &[u8]) -> (V, [u8; 28])
where
    W: FromBytes + IntoBytes + Immutable + for<'a> From<&'a V>,
    V: From<W>,
{
    let value = V::from(W::read_from_bytes(bytes).unwrap());
    let mut out = [0; 28];
    let wire = W::from(&value);
    out[..bytes.len()].copy_from_slice(wire.as_bytes());
    (value, out)
}

proptest! {
    #[test]
    fn every_header_keeps_every_bit(bytes: [u8; 28]) {
        prop_assert_eq!(&again::<Bth, wire::Bth>(&bytes[..12]).1[..12], &bytes[..12]);
        prop_assert_eq!(&again::<Reth, wire::Reth>(&bytes[..16]).1[..16], &bytes[..16]);
        prop_assert_eq!(&again::<Aeth, wire::Aeth>(&bytes[..4]).1[..4], &bytes[..4]);
        prop_assert_eq!(&again::<ImmDt, wire::ImmDt>(&bytes[..4]).1[..4], &bytes[..4]);
        prop_assert_eq!(&again::<AtomicEth, wire::AtomicEth>(&bytes).1, &bytes);
        prop_assert_eq!(&again::<AtomicAckEth, wire::AtomicAckEth>(&bytes[..8]).1[..8], &bytes[..8]);
        prop_assert_eq!(&again::<Ieth, wire::Ieth>(&bytes[..4]).1[..4], &bytes[..4]);
        prop_assert_eq!(&again::<Deth, wire::Deth>(&bytes[..8]).1[..8], &bytes[..8]);
    }
}

#[test]
fn bth_fields_lie_where_the_standard_has_them() {
    let bytes = [0x0a, 0xb7, 0x12, 0x34, 0xa5, 0x01, 0x02, 0x03, 0xc9, 0xff, 0xff, 0xfa];
    let bth = Bth {
        opcode: Opcode::WRITE_ONLY,
        solicited: true,
        migreq: false,
        pad_count: 3,
        tver: 7,
        pkey: 0x1234,
        fecn: true,
        becn: false,
        resv8a: 0x25,
        dest_qp: 0x01_02_03,
        ack_req: true,
        adaptive: true,
        resv7: 0x09,
        psn: Psn::new(0xff_fffa),
    };
    assert_eq!(again::<Bth, wire::Bth>(&bytes).0, bth);
    assert_eq!(wire::Bth::from(&bth).as_bytes(), bytes);
}

#[test]
fn wide_values_stay_in_their_fields() {
    let bth = Bth { pad_count: 0xff, dest_qp: u32::MAX, ..Bth::default() };
    let bytes = [0, 0x30, 0, 0, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0];
    assert_eq!(wire::Bth::from(&bth).as_bytes(), bytes);
    let aeth = Aeth { syndrome: Syndrome::RnrNak { timer: 0xff }, msn: u32::MAX };
    assert_eq!(wire::Aeth::from(&aeth).as_bytes(), [0x3f, 0xff, 0xff, 0xff]);
}

#[test]
fn extension_fields_lie_where_the_standard_has_them() {
    let bytes: [u8; 28] = core::array::from_fn(|i| i as u8);
    let (reth, _) = again::<Reth, wire::Reth>(&bytes[..16]);
    let va = 0x0001_0203_0405_0607;
    assert_eq!(reth, Reth { va, rkey: 0x0809_0a0b, dma_len: 0x0c0d_0e0f });
    let (atomic, _) = again::<AtomicEth, wire::AtomicEth>(&bytes);
    let (swap_or_add, compare) = (0x0c0d_0e0f_1011_1213, 0x1415_1617_1819_1a1b);
    assert_eq!(atomic, AtomicEth { va, rkey: 0x0809_0a0b, swap_or_add, compare });
    let (deth, _) = again::<Deth, wire::Deth>(&bytes[..8]);
    assert_eq!(deth, Deth { qkey: 0x0001_0203, resv8: 4, src_qp: 0x05_0607 });
    assert_eq!(again::<AtomicAckEth, wire::AtomicAckEth>(&bytes[..8]).0, AtomicAckEth(va));
    assert_eq!(again::<Ieth, wire::Ieth>(&bytes[..4]).0, Ieth(0x0001_0203));
    assert_eq!(again::<ImmDt, wire::ImmDt>(&bytes[..4]).0, ImmDt([0, 1, 2, 3]));
}

#[test]
fn every_syndrome_byte_has_one_meaning() {
    for byte in 0..=255 {
        assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
    }
    let meanings = [
        (0x1f, Syndrome::Ack { credits: Syndrome::CREDITS_INVALID }),
        (0x2c, Syndrome::RnrNak { timer: 12 }),
        (0x40, Syndrome::Unknown(0x40)),
        (0x60, Syndrome::Nak(NakCode::PsnSequenceError)),
        (0x61, Syndrome::Nak(NakCode::InvalidRequest)),
        (0x62, Syndrome::Nak(NakCode::RemoteAccessError)),
        (0x63, Syndrome::Nak(NakCode::RemoteOperationalError)),
        (0x64, Syndrome::Nak(NakCode::InvalidRdRequest)),
        (0x65, Syndrome::Nak(NakCode::Unknown(5))),
        (0x80, Syndrome::Unknown(0x80)),
        (0xff, Syndrome::Unknown(0xff)),
    ];
    for (byte, syndrome) in meanings {
        assert_eq!(Syndrome::from_byte(byte), syndrome, "{byte:#04x}");
    }
}
