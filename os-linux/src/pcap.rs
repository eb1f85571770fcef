//! Classic pcap files of IP packets, for Wireshark and tshark.

use std::io::{self, Write};

/// The magic number of files with timestamps in nanoseconds; all words are little-endian.
const MAGIC_NS: u32 = 0xa1b2_3c4d;
/// Version 2.4 as two half words.
const VERSION: u32 = 4 << 16 | 2;
/// Maximum length of a captured frame; no frame is longer.
const SNAP_BYTES: u32 = 0x4_0000;
/// Link type of frames that begin with their IP header.
const LINKTYPE_RAW: u32 = 101;

/// Writes a pcap file, frame by frame.
#[derive(Debug)]
pub struct Writer<W: Write> {
    file: W,
}

impl<W: Write> Writer<W> {
    /// Writes the file's header.
    pub fn new(mut file: W) -> io::Result<Writer<W>> {
        write_words(&mut file, &[MAGIC_NS, VERSION, 0, 0, SNAP_BYTES, LINKTYPE_RAW])?;
        Ok(Writer { file })
    }

    /// Appends an IP packet, given in two parts, with the timestamp `time_ns` after 1970. The format's
    /// seconds end in 2106.
    pub fn write(&mut self, time_ns: u64, headers: &[u8], payload: &[u8]) -> io::Result<()> {
        let len = u32::try_from(headers.len() + payload.len()).map_err(io::Error::other)?;
        let (seconds, ns) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
        write_words(&mut self.file, &[seconds as u32, ns as u32, len, len])?;
        self.file.write_all(headers)?;
        self.file.write_all(payload)
    }

    /// Flushes all data to the file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn write_words(file: &mut impl Write, words: &[u32]) -> io::Result<()> {
    words.iter().try_for_each(|word| file.write_all(&word.to_le_bytes()))
}
