//! Copies between private bytes and memory that others change meanwhile.
//!
//! Shared memory is accessed by its aligned 8-byte words, each by one atomic operation. LLVM does
//! not merge such operations into vectors, which leaves a plain loop at two thirds of the speed
//! of `memcpy`; `rep movsq` is by definition that same loop, done by the processor at full speed.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD: usize = size_of::<AtomicU64>();

/// How to access a part of a word, at either end of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edges {
    /// The byte is accessed as the whole word around it, which all belongs to the region.
    Words,
    /// Byte by byte, since the rest of the word may be somebody else's.
    Bytes,
}

/// Copies `from` to `to`, upwards, the last word or part of one with release ordering.
///
/// # Safety
///
/// The bytes at `to` (with [`Edges::Words`] also those that share a word with them) are valid for
/// writes, and conflicting accesses are atomic and of the same cells.
pub(super) unsafe fn write(to: NonNull<u8>, from: &[u8], edges: Edges) {
    let (head, words) = split(to, from.len());
    let (head, rest) = from.split_at(head);
    let (body, tail) = rest.split_at(words * WORD);
    // SAFETY: the three parts lie in the caller's range, and `body` starts on a word.
    unsafe {
        write_edge(to, head, edges);
        write_words(to.add(head.len()).cast(), body);
        write_edge(to.add(head.len() + body.len()), tail, edges);
    }
}

/// Copies `from` to `to`, relaxed.
///
/// # Safety
///
/// The caller keeps the promises of [`write`], for reads.
pub(super) unsafe fn read(from: NonNull<u8>, to: &mut [u8], edges: Edges) {
    let (head, words) = split(from, to.len());
    let (head, rest) = to.split_at_mut(head);
    let (body, tail) = rest.split_at_mut(words * WORD);
    // SAFETY: the three parts lie in the caller's range, and `body` starts on a word.
    unsafe {
        read_edge(from, head, edges);
        read_words(from.add(head.len()).cast(), body);
        read_edge(from.add(head.len() + body.len()), tail, edges);
    }
}

/// Bytes before the first whole word, and number of whole words.
fn split(start: NonNull<u8>, len: usize) -> (usize, usize) {
    let head = (start.addr().get().wrapping_neg() % WORD).min(len);
    (head, (len - head) / WORD)
}

/// # Safety
///
/// The caller keeps the promises of [`write`]. `to` is aligned and `from` a multiple of the word size.
unsafe fn write_words(to: NonNull<AtomicU64>, from: &[u8]) {
    let Some((bulk, last)) = from.split_last_chunk::<WORD>() else { return };
    let words = bulk.len() / WORD;
    // SAFETY: by the caller's promise there are `words + 1` words, used as atomics.
    unsafe {
        if words >= STRING_COPY_WORDS_MIN {
            string_copy(to.as_ptr().cast(), bulk.as_ptr(), words);
        } else {
            for (i, word) in bulk.as_chunks::<WORD>().0.iter().enumerate() {
                to.add(i).as_ref().store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
        }
        to.add(words).as_ref().store(u64::from_ne_bytes(*last), Ordering::Release);
    }
}

/// # Safety
///
/// The caller keeps the promises of [`read`]. `from` is aligned and `to` a multiple of the word size.
unsafe fn read_words(from: NonNull<AtomicU64>, to: &mut [u8]) {
    let words = to.len() / WORD;
    // SAFETY: by the caller's promise there are `words` words, used as atomics.
    unsafe {
        if words >= STRING_COPY_WORDS_MIN {
            string_copy(to.as_mut_ptr(), from.as_ptr().cast(), words);
        } else {
            for (i, word) in to.as_chunks_mut::<WORD>().0.iter_mut().enumerate() {
                *word = from.add(i).as_ref().load(Ordering::Relaxed).to_ne_bytes();
            }
        }
    }
}

/// # Safety
///
/// The caller keeps the promises of [`write`]. The bytes lie within one word.
unsafe fn write_edge(to: NonNull<u8>, from: &[u8], edges: Edges) {
    if from.is_empty() {
        return;
    }
    match edges {
        Edges::Words => {
            let at = to.addr().get() % WORD;
            let (mut mask, mut value) = ([0; WORD], [0; WORD]);
            mask[at..at + from.len()].fill(0xff);
            value[at..at + from.len()].copy_from_slice(from);
            let (mask, value) = (u64::from_ne_bytes(mask), u64::from_ne_bytes(value));
            // SAFETY: the whole word belongs to the region and is an atomic.
            let word = unsafe { to.sub(at).cast::<AtomicU64>().as_ref() };
            word.update(Ordering::Release, Ordering::Relaxed, |old| old & !mask | value);
        }
        Edges::Bytes => {
            for (i, byte) in from.iter().enumerate() {
                // SAFETY: in the caller's range.
                let cell = unsafe { to.add(i).cast::<AtomicU8>().as_ref() };
                cell.store(*byte, Ordering::Release);
            }
        }
    }
}

/// # Safety
///
/// The caller keeps the promises of [`read`]. The bytes lie within one word.
unsafe fn read_edge(from: NonNull<u8>, to: &mut [u8], edges: Edges) {
    if to.is_empty() {
        return;
    }
    match edges {
        Edges::Words => {
            let at = from.addr().get() % WORD;
            // SAFETY: the whole word belongs to the region and is an atomic.
            let word = unsafe { from.sub(at).cast::<AtomicU64>().as_ref() };
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            to.copy_from_slice(&bytes[at..at + to.len()]);
        }
        Edges::Bytes => {
            for (i, byte) in to.iter_mut().enumerate() {
                // SAFETY: in the caller's range.
                let cell = unsafe { from.add(i).cast::<AtomicU8>().as_ref() };
                *byte = cell.load(Ordering::Relaxed);
            }
        }
    }
}

/// Below this many words the loop is faster. (On an AMD EPYC it moves 24 GB/s against 16 with 256
/// bytes, 30 against 38 with 1 KiB, 33 against 48 with 4 KiB; `memcpy` 47.)
#[cfg(target_arch = "x86_64")]
const STRING_COPY_WORDS_MIN: usize = 96;

/// On a processor without such an instruction the loop copies everything.
#[cfg(not(target_arch = "x86_64"))]
const STRING_COPY_WORDS_MIN: usize = usize::MAX;

/// Copies words as relaxed loads and stores of one word each would.
///
/// # Safety
///
/// Valid for `words` words of reads and writes, not overlapping; whichever side is shared is
/// aligned, so that the moves of the instruction are atomic.
#[cfg(target_arch = "x86_64")]
unsafe fn string_copy(to: *mut u8, from: *const u8, words: usize) {
    // SAFETY: by the caller's promise; the ABI has the direction flag clear.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") words => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn string_copy(_: *mut u8, _: *const u8, _: usize) {
    unreachable!("STRING_COPY_WORDS_MIN keeps every copy below");
}
