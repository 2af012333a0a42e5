//! Encodings of times and durations: seconds, then nanoseconds.

use std::time::{Duration, SystemTime};

use super::{DecodeError, EncodeAs, Key, take};

const NANOS: u32 = 1_000_000_000;

fn nanos(bytes: &mut &[u8]) -> Result<u32, DecodeError> {
    let nanos = u32::from_be_bytes(take(bytes, "nanoseconds")?);
    let in_second = nanos < NANOS;
    in_second.then_some(nanos).ok_or(DecodeError { expected: "nanoseconds", found: "a second or more" })
}

impl EncodeAs<Duration> for Duration {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        (self.as_secs(), self.subsec_nanos()).encode_into(bytes);
    }
}

impl Key for Duration {
    fn decode_from(bytes: &mut &[u8]) -> Result<Duration, DecodeError> {
        let seconds = u64::decode_from(bytes)?;
        Ok(Duration::new(seconds, nanos(bytes)?))
    }
}

/// Returns the seconds since 1970, rounded down, and the remaining nanoseconds. Seconds beyond the range of an `i64`
/// are clamped to that range; no platform that Rust supports has such times.
fn since_1970(time: SystemTime) -> (i64, u32) {
    let clamped = |seconds: i128| i64::try_from(seconds).unwrap_or(if seconds < 0 { i64::MIN } else { i64::MAX });
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => (clamped(after.as_secs().into()), after.subsec_nanos()),
        Err(error) => {
            let before = error.duration();
            let seconds = -i128::from(before.as_secs());
            match before.subsec_nanos() {
                0 => (clamped(seconds), 0),
                nanos => (clamped(seconds - 1), NANOS - nanos),
            }
        }
    }
}

impl EncodeAs<SystemTime> for SystemTime {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        since_1970(*self).encode_into(bytes);
    }
}

impl Key for SystemTime {
    fn decode_from(bytes: &mut &[u8]) -> Result<SystemTime, DecodeError> {
        let seconds = i64::decode_from(bytes)?;
        let nanos = nanos(bytes)?;
        let whole = Duration::from_secs(seconds.unsigned_abs());
        let second = if seconds < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(whole)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(whole)
        };
        let time = second.and_then(|second| second.checked_add(Duration::from_nanos(nanos.into())));
        time.ok_or(DecodeError { expected: "a time", found: "one that this system can't represent" })
    }
}
