//! SipHash-1-3 with 128 bits (Aumasson and Bernstein), in one pass over the bytes written.
//!
//! The same function as in the crate `siphasher`, with which the tests compare it. It needs a third
//! fewer instructions for a short key, because it reads whole words and everything is inlined.

use std::hash::Hasher;

/// Four words, stirred in rounds.
#[derive(Clone, Copy, Debug)]
struct SipState {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

/// A hash being computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct SipHasher {
    state: SipState,
    /// Bytes that do not fill a word yet, the first one lowest.
    tail: u64,
    /// Bytes written.
    length: usize,
}

impl SipState {
    #[inline]
    const fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
    }

    #[inline]
    const fn compress(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.v0 ^= word;
    }

    #[inline]
    const fn finalize(&mut self) -> u64 {
        self.round();
        self.round();
        self.round();
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }
}

impl SipHasher {
    #[inline]
    pub(super) const fn new(key: [u64; 2]) -> Self {
        Self {
            state: SipState {
                v0: key[0] ^ 0x736f_6d65_7073_6575,
                v1: key[1] ^ 0x646f_7261_6e64_6f6d ^ 0xee,
                v2: key[0] ^ 0x6c79_6765_6e65_7261,
                v3: key[1] ^ 0x7465_6462_7974_6573,
            },
            tail: 0,
            length: 0,
        }
    }

    /// Takes the lowest `bytes` (at most 8) of `word`; those above are zero.
    #[inline]
    const fn take(&mut self, word: u64, bytes: usize) {
        let held = self.length % 8;
        self.tail |= word << (8 * held);
        self.length += bytes;
        if held + bytes >= 8 {
            self.state.compress(self.tail);
            // If no bytes are held, the whole word is consumed: in two steps, because a shift by 64
            // is not allowed.
            self.tail = (word >> (8 * (7 - held))) >> 8;
        }
    }

    /// The first word of the hash of everything written, and the state for the second.
    #[inline]
    pub(super) const fn first_word(mut self) -> (u64, HalfHash) {
        self.state.compress((self.length as u64) << 56 | self.tail);
        self.state.v2 ^= 0xee;
        let first = self.state.finalize();
        (first, HalfHash(self.state))
    }
}

/// A hash of which one word is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct HalfHash(SipState);

impl HalfHash {
    /// The second word.
    #[inline]
    pub(super) const fn second_word(mut self) -> u64 {
        self.0.v1 ^= 0xdd;
        self.0.finalize()
    }
}

impl Hasher for SipHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.take(u64::from_le_bytes(*word), 8);
        }
        if rest.is_empty() {
            return;
        }
        let word = match bytes.last_chunk::<8>() {
            // The end of the last eight bytes, without those that were consumed.
            Some(last) => u64::from_le_bytes(*last) >> (8 * (8 - rest.len())),
            None => {
                let bytes = rest.iter().rev();
                bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
            }
        };
        self.take(word, rest.len());
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        self.take(u64::from(byte), 1);
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.take(u64::from(number.to_le()), 4);
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.take(number.to_le(), 8);
    }

    fn finish(&self) -> u64 {
        self.first_word().0
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hash;

    use siphasher::sip128::{Hasher128, SipHasher13};

    use super::*;

    const KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];

    fn both(write: impl Fn(&mut dyn Hasher)) -> ([u64; 2], [u64; 2]) {
        let mut ours = SipHasher::new(KEY);
        let mut theirs = SipHasher13::new_with_keys(KEY[0], KEY[1]);
        write(&mut ours);
        write(&mut theirs);
        let hash = theirs.finish128();
        let (first, halfway) = ours.first_word();
        ([first, halfway.second_word()], [hash.h1, hash.h2])
    }

    #[test]
    fn is_the_function_that_siphasher_has() {
        let bytes: Vec<u8> = (0..=255).cycle().skip(7).take(600).collect();
        for length in 0..bytes.len() {
            let (ours, theirs) = both(|hasher| hasher.write(&bytes[..length]));
            assert_eq!(ours, theirs, "{length} bytes");
        }
    }

    #[test]
    fn however_it_is_cut() {
        let bytes: Vec<u8> = (1..=40).collect();
        for first in 0..bytes.len() {
            for second in first..bytes.len() {
                let (ours, theirs) = both(|hasher| {
                    hasher.write(&bytes[..first]);
                    hasher.write_u8(0xff);
                    hasher.write(&bytes[first..second]);
                    hasher.write_u32(0x0403_0201);
                    hasher.write_u64(0x0807_0605_0403_0201);
                    hasher.write_usize(second);
                    hasher.write(&bytes[second..]);
                });
                assert_eq!(ours, theirs, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn keys_that_programs_have() {
        let (ours, theirs) = both(|mut hasher| {
            ("user:000000012345", 7_u64, [1_u8, 2, 3], 'x', true).hash(&mut hasher);
        });
        assert_eq!(ours, theirs);
    }
}
