//! Moments to which a backup is restored, and how they are written.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::format::Timestamp;

/// The moment to which a backup is restored, with the help of an [archive](crate::Archive).
///
/// ```
/// use std::time::{SystemTime, UNIX_EPOCH, Duration};
/// use drumlin::{RestorePoint, Timestamp};
///
/// let hour_ago = SystemTime::now() - Duration::from_secs(3600);
/// let by_time = RestorePoint::Time(hour_ago.duration_since(UNIX_EPOCH).unwrap());
/// let by_commit = RestorePoint::Commit(Timestamp(1234));
/// assert_eq!("1234".parse(), Ok(by_commit));
/// assert_eq!(RestorePoint::Time(Duration::ZERO).to_string(), "1970-01-01T00:00:00.000Z");
/// assert_eq!("1970-01-01 00:00Z".parse(), Ok(RestorePoint::Time(Duration::ZERO)));
/// ```
///
/// A point is written as the number of a commit, as a time in UTC, or as `newest`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RestorePoint {
    /// The state after the commit with this timestamp.
    Commit(Timestamp),
    /// The state at this time since 1970, by the system's clock. It has all commits that were durable by then, and none
    /// that was begun later, except for those in a batch of the log that was begun before: the log reads the clock once
    /// for each batch, which collects commits for as long as one write takes.
    Time(Duration),
    /// The state after the last commit in the archive.
    Newest,
}

impl fmt::Display for RestorePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestorePoint::Commit(timestamp) => write!(f, "{timestamp}"),
            RestorePoint::Time(time) => write!(f, "{}", Utc(time.as_millis() as u64)),
            RestorePoint::Newest => write!(f, "newest"),
        }
    }
}

impl FromStr for RestorePoint {
    type Err = String;

    fn from_str(text: &str) -> Result<RestorePoint, String> {
        if text == "newest" {
            return Ok(RestorePoint::Newest);
        }
        if let Some(timestamp) = number(text) {
            return Ok(RestorePoint::Commit(Timestamp(timestamp)));
        }
        let time = Utc::parse(text).map(|time| RestorePoint::Time(Duration::from_millis(time.0)));
        time.ok_or_else(|| {
            format!(
                "{text:?} is no point in time: give a timestamp such as 1234, or a time such as 2026-11-28T12:34:56Z"
            )
        })
    }
}

/// A time in milliseconds since 1970, shown as a date and a time in UTC.
pub(crate) struct Utc(pub(crate) u64);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms) = (self.0 / 86_400_000, self.0 % 86_400_000);
        // The days of a year that begins in March: the leap day is the last one. 146,097 days are 400 years.
        let shifted = days + 719_468;
        let (era, of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1_000)
    }
}

impl Utc {
    /// Reads a time like `2026-11-28T12:34:56.789Z`. The parts after the minute may be missing, and a space may stand
    /// for the T.
    fn parse(text: &str) -> Option<Utc> {
        let text = text.strip_suffix('Z').unwrap_or(text);
        let (date, time) = text.split_once(['T', ' '])?;
        let mut parts = date.split('-').map(number);
        let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
        let is_date = parts.next().is_none() && (1970..10_000).contains(&year) && (1..=12).contains(&month);
        let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
        let mut parts = time.split(':').map(number);
        let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
        let is_time = parts.next().is_none() && hour < 24 && minute < 60 && second < 60 && fraction.len() <= 9;
        if !is_date || !is_time || !(1..=31).contains(&day) {
            return None;
        }
        let ms = number(&format!("{fraction:0<9}"))? / 1_000_000;
        // The days before a year that begins in March, and those before the month in it.
        let of_march = year - u64::from(month <= 2);
        let days_before = of_march * 365 + of_march / 4 - of_march / 100 + of_march / 400;
        let month = if month > 2 { month - 3 } else { month + 9 };
        let days = days_before + (153 * month + 2) / 5 + day - 1 - 719_468;
        let found = Utc(((days * 24 + hour) * 60 + minute) * 60_000 + second * 1_000 + ms);
        // A day that the month does not have is shown as another date.
        found.to_string().starts_with(date).then_some(found)
    }
}

/// Returns the number that consists of these digits.
fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times are shown as dates and read again, also on leap days and at the ends of years.
    #[test]
    fn times_are_dates() {
        for (ms, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (1_764_291_661_007, "2025-11-28T01:01:01.007Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Utc(ms).to_string(), shown);
            assert_eq!(Utc::parse(shown).map(|time| time.0), Some(ms), "{shown}");
            assert_eq!(shown.parse(), Ok(RestorePoint::Time(Duration::from_millis(ms))));
        }
        let minute = Utc::parse("2025-11-28 01:01").map(|time| time.0);
        assert_eq!(minute, Some(1_764_291_660_000));
        assert_eq!(Utc::parse("2025-11-28T01:01:01.5Z").map(|time| time.0), Some(1_764_291_661_500));
    }

    /// A text that is neither a timestamp nor a time is refused.
    #[test]
    fn other_texts_are_no_points() {
        for text in
            ["", "now", "-5", "2025-02-29 00:00", "2025-13-01 00:00", "2025-11-28", "2025-11-28T24:00", "12:00", "1e5"]
        {
            assert!(text.parse::<RestorePoint>().is_err(), "{text}");
        }
        assert_eq!("newest".parse(), Ok(RestorePoint::Newest));
        assert_eq!("17".parse(), Ok(RestorePoint::Commit(Timestamp(17))));
    }
}
