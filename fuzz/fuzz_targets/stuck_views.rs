//! What a peer, a rank or a file says about stalls: views of ends and ranks, and records. No bytes cause a panic,
//! and what is understood survives the way back.

#![no_main]

use invar_core::recorder::{Header, RECORD_BYTES, RECORD_BYTES_MAX, Record};
use invar_core::rendezvous::RankView;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Header::parse(bytes);
    if let Some(view) = RankView::parse(bytes) {
        assert_eq!(RankView::parse(&view.to_bytes()), Some(view));
    }
    let mut whole = bytes.to_vec();
    whole.resize(RECORD_BYTES_MAX, 0);
    // Equal turns, or all but a few inputs would be torn.
    for turn_at in [RECORD_BYTES - 8, RECORD_BYTES, RECORD_BYTES_MAX - 8] {
        whole.copy_within(..8, turn_at);
    }
    // A reader may take a record without its messages.
    for bytes in [&whole[..], &whole[..RECORD_BYTES]] {
        if let Ok(Some(record)) = Record::parse(bytes) {
            assert_eq!(Record::parse(&record.to_bytes(1)), Ok(Some(record)));
        }
    }
});
