use std::format;

use super::*;
use Position::{First, Last, Middle, Only};

extern crate std;

type Row = (u8, Option<Position>, &'static [Extensions]);

const NONE: &[Extensions] = &[];
const RETH: &[Extensions] = &[Extensions::RETH];
const AETH: &[Extensions] = &[Extensions::AETH];
const IMMDT: &[Extensions] = &[Extensions::IMMDT];
const IETH: &[Extensions] = &[Extensions::IETH];
const ATOMICETH: &[Extensions] = &[Extensions::ATOMICETH];

/// Opcodes of the reliable connection (IBTA §9.2.1). The unreliable connection has the first twelve of
/// them.
const CONNECTED: [Row; 23] = [
    (0x00, Some(First), NONE),
    (0x01, Some(Middle), NONE),
    (0x02, Some(Last), NONE),
    (0x03, Some(Last), IMMDT),
    (0x04, Some(Only), NONE),
    (0x05, Some(Only), IMMDT),
    (0x06, Some(First), RETH),
    (0x07, Some(Middle), NONE),
    (0x08, Some(Last), NONE),
    (0x09, Some(Last), IMMDT),
    (0x0a, Some(Only), RETH),
    (0x0b, Some(Only), &[Extensions::RETH, Extensions::IMMDT]),
    (0x0c, Some(Only), RETH),
    (0x0d, Some(First), AETH),
    (0x0e, Some(Middle), NONE),
    (0x0f, Some(Last), AETH),
    (0x10, Some(Only), AETH),
    (0x11, Some(Only), AETH),
    (0x12, Some(Only), &[Extensions::AETH, Extensions::ATOMICACKETH]),
    (0x13, Some(Only), ATOMICETH),
    (0x14, Some(Only), ATOMICETH),
    (0x16, Some(Last), IETH),
    (0x17, Some(Only), IETH),
];

const DATAGRAM: [Row; 2] = [
    (0x64, Some(Only), &[Extensions::DETH]),
    (0x65, Some(Only), &[Extensions::DETH, Extensions::IMMDT]),
];

/// Looks an opcode up in the tables. An opcode in no table has no headers behind the BTH.
fn row(code: u8) -> (Option<Position>, Extensions) {
    let connected = match code {
        0x20..=0x2b => code - 0x20,
        _ => code,
    };
    let mut rows = CONNECTED.into_iter().chain(DATAGRAM);
    rows.find(|row| row.0 == connected)
        .map_or((None, Extensions::empty()), |row| (row.1, row.2.iter().copied().collect()))
}

#[test]
fn every_byte_has_the_headers_and_position_of_the_standard() {
    for code in 0..=255 {
        let opcode = Opcode(code);
        assert_eq!((opcode.position(), opcode.extensions()), row(code), "{code:#04x}");
    }
}

#[test]
fn the_upper_three_bits_name_the_transport() {
    let transports = [
        (0x0b, RoceTransport::Rc),
        (0x2b, RoceTransport::Uc),
        (0x4b, RoceTransport::Rd),
        (0x64, RoceTransport::Ud),
        (0x81, RoceTransport::Cnp),
        (0xab, RoceTransport::Xrc),
        (0xc0, RoceTransport::Other(6)),
        (0xff, RoceTransport::Other(7)),
    ];
    for (code, transport) in transports {
        assert_eq!(Opcode(code).transport(), transport, "{code:#04x}");
    }
}

#[test]
fn only_responders_of_reliable_connections_send_responses() {
    let responses: std::vec::Vec<u8> = (0..=255).filter(|c| Opcode(*c).is_response()).collect();
    assert_eq!(responses, [0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12]);
}

#[test]
fn names_are_for_people() {
    assert_eq!(format!("{:?}", Opcode::WRITE_LAST_IMM), "RC_WRITE_LAST_IMM");
    assert_eq!(format!("{:?}", Opcode(0x29)), "UC_WRITE_LAST_IMM");
    assert_eq!(format!("{:?}", Opcode::UD_SEND_ONLY), "UD_SEND_ONLY");
    assert_eq!(format!("{:?}", Opcode(0x2c)), "Opcode(0x2c)");
}
