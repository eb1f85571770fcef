use proptest::prelude::*;
use std::vec::Vec;

use super::*;
use crate::roce::{NakCode, Opcode, Psn, Syndrome};

extern crate std;

fn encode(packet: &Packet<'_>) -> Vec<u8> {
    let mut headers = [0; HEADERS_BYTES_MAX];
    let n = packet.headers.encode(&mut headers);
    [&headers[..n], packet.payload, packet.trailer].concat()
}

/// Builds a BTH with this opcode, this pad count and one byte that is never zero, then `n` counting
/// bytes.
fn bytes_of(opcode: u8, pad: u8, n: usize) -> Vec<u8> {
    let mut bytes = std::vec![opcode, pad << 4, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 9];
    bytes.extend((0..n).map(|i| i as u8));
    bytes
}

proptest! {
    #[test]
    fn what_decodes_encodes_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..96)) {
        if let Ok(packet) = Packet::decode(&bytes) {
            prop_assert_eq!(encode(&packet), bytes);
        }
    }

    #[test]
    fn any_opcode_decodes_if_there_are_bytes_enough(
        opcode: u8, rest in prop::collection::vec(any::<u8>(), 11 + 28 + 3 + 4..96),
    ) {
        let bytes = [&[opcode], &rest[..]].concat();
        let packet = Packet::decode(&bytes).unwrap();
        prop_assert_eq!(packet.headers.bth.opcode, Opcode(opcode));
        prop_assert_eq!(encode(&packet), bytes);
    }
}

#[test]
fn a_packet_of_every_shape_lands_in_its_fields() {
    let bytes = bytes_of(Opcode::WRITE_ONLY_IMM.0, 1, 16 + 4 + 3 + 1 + 4);
    let packet = Packet::decode(&bytes).unwrap();
    let reth = Reth { va: 0x0001_0203_0405_0607, rkey: 0x0809_0a0b, dma_len: 0x0c0d_0e0f };
    assert_eq!(packet.headers.reth, Some(reth));
    assert_eq!(packet.headers.imm, Some(ImmDt([16, 17, 18, 19])));
    assert_eq!(packet.headers.bth.psn, Psn::new(9));
    assert_eq!((packet.payload, packet.trailer), (&[20, 21, 22][..], &[23, 24, 25, 26, 27][..]));

    let bytes = bytes_of(Opcode::ATOMIC_ACKNOWLEDGE.0, 0, 4 + 8 + 4);
    let packet = Packet::decode(&bytes).unwrap();
    let syndrome = Syndrome::Ack { credits: 0 };
    assert_eq!(packet.headers.aeth, Some(Aeth { syndrome, msn: 0x01_0203 }));
    let ack = AtomicAckEth(0x0405_0607_0809_0a0b);
    assert_eq!(packet.headers.foreign, Some(Foreign::AtomicAck(ack)));

    let bytes = bytes_of(Opcode::UD_SEND_ONLY_IMM.0, 0, 8 + 4 + 4);
    let packet = Packet::decode(&bytes).unwrap();
    let deth = Deth { qkey: 0x0001_0203, resv8: 4, src_qp: 0x05_0607 };
    assert_eq!(packet.headers.foreign, Some(Foreign::Datagram(deth)));
    assert_eq!(packet.headers.imm, Some(ImmDt([8, 9, 10, 11])));

    let bytes = bytes_of(Opcode::SEND_LAST_INV.0, 0, 4 + 4);
    let packet = Packet::decode(&bytes).unwrap();
    assert_eq!(packet.headers.foreign, Some(Foreign::Invalidate(Ieth(0x0001_0203))));
}

#[test]
fn what_follows_an_unknown_opcode_is_payload() {
    for opcode in [Opcode::CNP.0, 0x15, 0x4a, 0xab, 0xff] {
        let bytes = bytes_of(opcode, 2, 16 + 2 + 4);
        let packet = Packet::decode(&bytes).unwrap();
        assert_eq!(packet.payload.len(), 16, "{opcode:#04x}");
        let bth = packet.headers.bth;
        assert_eq!(packet.headers, Headers { bth, ..Headers::default() }, "{opcode:#04x}");
    }
}

/// Name and length of one part of a packet, the payload excluded.
type Part = (&'static str, usize);

/// Finds the first part that ends beyond `len`.
fn expected(layout: &[Part], len: usize) -> Option<DecodeError> {
    let mut offset = 0;
    for &(what, needed) in layout {
        let got = len - offset;
        if got < needed {
            return Some(DecodeError::Truncated { what, offset, needed, got });
        }
        offset += needed;
    }
    None
}

#[test]
fn a_cut_anywhere_is_an_error_that_says_where() {
    let shapes: [(Opcode, u8, &[Part]); 7] = [
        (Opcode::SEND_ONLY, 3, &[("BTH", 12), ("pad and checksum", 7)]),
        (
            Opcode::WRITE_ONLY_IMM,
            1,
            &[("BTH", 12), ("RETH", 16), ("ImmDt", 4), ("pad and checksum", 5)],
        ),
        (Opcode::ACKNOWLEDGE, 0, &[("BTH", 12), ("AETH", 4), ("pad and checksum", 4)]),
        (
            Opcode::ATOMIC_ACKNOWLEDGE,
            0,
            &[("BTH", 12), ("AETH", 4), ("AtomicAckETH", 8), ("pad and checksum", 4)],
        ),
        (Opcode::FETCH_ADD, 0, &[("BTH", 12), ("AtomicETH", 28), ("pad and checksum", 4)]),
        (Opcode::SEND_ONLY_INV, 2, &[("BTH", 12), ("IETH", 4), ("pad and checksum", 6)]),
        (Opcode::UD_SEND_ONLY, 0, &[("BTH", 12), ("DETH", 8), ("pad and checksum", 4)]),
    ];
    for (opcode, pad, layout) in shapes {
        let whole = layout.iter().map(|(_, n)| n).sum();
        let bytes = bytes_of(opcode.0, pad, whole - 12);
        for len in 0..=whole {
            let error = Packet::decode(&bytes[..len]).err();
            assert_eq!(error, expected(layout, len), "{opcode:?} cut to {len}");
        }
    }
}

#[test]
fn errors_read_well() {
    let error = Packet::decode(&bytes_of(Opcode::READ_REQUEST.0, 0, 5)).unwrap_err();
    assert_eq!(std::format!("{error}"), "RETH at byte 12 needs 16 bytes and has 5");
}

#[test]
fn a_nak_is_these_bytes() {
    let bth = Bth {
        opcode: Opcode::ACKNOWLEDGE,
        pkey: 0xffff,
        dest_qp: 0x1f,
        psn: Psn::new(0xff_fffa),
        ..Bth::default()
    };
    let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteOperationalError), msn: 0 };
    let mut out = [0; HEADERS_BYTES_MAX];
    let n = Headers { bth, aeth: Some(aeth), ..Headers::default() }.encode(&mut out);
    assert_eq!(out[..n], [0x11, 0, 0xff, 0xff, 0, 0, 0, 0x1f, 0, 0xff, 0xff, 0xfa, 0x63, 0, 0, 0]);
}

#[test]
fn headers_of_every_kind_at_once_still_fit() {
    let headers = Headers {
        reth: Some(Reth::default()),
        aeth: Some(Aeth { syndrome: Syndrome::Unknown(0xff), msn: 0 }),
        imm: Some(ImmDt::default()),
        foreign: Some(Foreign::Atomic(AtomicEth::default())),
        ..Headers::default()
    };
    assert_eq!(headers.encode(&mut [0; HEADERS_BYTES_MAX]), HEADERS_BYTES_MAX);
}

#[test]
fn padding_fills_up_words() {
    assert_eq!([0, 1, 2, 3, 4, 5, u32::MAX].map(pad_count), [0, 3, 2, 1, 0, 3, 1]);
}
