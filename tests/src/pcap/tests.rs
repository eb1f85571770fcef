use invar_linux::pcap::Writer;
use proptest::prelude::*;

use super::*;

fn written(frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file).unwrap();
    for (time_ns, bytes) in frames {
        let (headers, payload) = bytes.split_at(bytes.len() / 2);
        writer.write(*time_ns, headers, payload).unwrap();
    }
    file
}

proptest! {
    #[test]
    fn what_is_written_reads_the_same(
        frames in prop::collection::vec(
            (0..u64::from(u32::MAX) * 1_000_000_000, prop::collection::vec(any::<u8>(), 0..50)),
            0..5,
        ),
    ) {
        let file = written(&frames);
        let reader = Reader::new(&file).unwrap();
        prop_assert_eq!(reader.link(), LinkType::Raw);
        let read: Vec<_> = reader.map(|f| f.map(|f| (f.time_ns, f.bytes.to_vec())).unwrap()).collect();
        prop_assert_eq!(read, frames);
    }
}

#[test]
fn either_unit_is_read() {
    for (magic, time_ns) in [(MAGIC_US, 7_000_008_000), (MAGIC_NS, 7_000_000_008)] {
        let words = [magic, 4 << 16 | 2, 0, 0, 65535, 101, 7, 8, 2, 60];
        let file = [&words.map(u32::to_le_bytes).concat()[..], &[0x45, 0]].concat();
        let frames: Vec<_> = Reader::new(&file).unwrap().map(Result::unwrap).collect();
        assert_eq!(frames, [Frame { time_ns, bytes: &[0x45, 0], link: LinkType::Raw }]);
        assert_eq!(frames[0].ip(), Some(&[0x45, 0][..]));
    }
}

#[test]
fn a_file_cut_anywhere_but_between_frames_is_an_error() {
    let file = written(&[(1, vec![2; 5]), (3, vec![4; 6])]);
    assert_eq!(file.len(), 24 + 21 + 22);
    for len in 0..=file.len() {
        let whole = Reader::new(&file[..len]).is_ok_and(|mut frames| frames.all(|f| f.is_ok()));
        assert_eq!(whole, matches!(len, 24 | 45 | 67), "{len} bytes");
    }
    let error = Reader::new(&file[..30]).unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "pcap file ends within the 16 bytes that begin at 24");
    let error = Reader::new(&[0x0a; 24]).unwrap_err();
    assert_eq!(error.to_string(), "not a pcap file: it begins with 0x0a0a0a0a");
}

#[test]
fn ethernet_frames_hold_ip_if_their_type_says_so() {
    let ip = |ethertype: [u8; 2]| {
        let bytes = [&[0; 12][..], &ethertype, &[0x45]].concat();
        Frame { time_ns: 0, bytes: &bytes, link: LinkType::Ethernet }.ip().map(<[u8]>::to_vec)
    };
    assert_eq!(ip([0x08, 0x00]), Some(vec![0x45]));
    assert_eq!(ip([0x86, 0xdd]), Some(vec![0x45]));
    assert_eq!(ip([0x08, 0x06]), None, "ARP");
}
