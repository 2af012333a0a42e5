//! Formats sizes, counts, rates and times for display, and parses sizes that users type.

use std::time::Duration;

/// Formats a count with separators, for example `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a rate or other computed number: large numbers as grouped integers, small ones with three significant
/// digits.
pub(crate) fn rate(number: f64) -> String {
    match number {
        number if number >= 100.0 => count(number.round() as u64),
        number if number >= 10.0 => format!("{number:.1}"),
        number if number >= 1.0 => format!("{number:.2}"),
        number => format!("{number:.3}"),
    }
}

/// Formats a number of bytes, for example `17 bytes`, `4.10 kB` or `1.39 GB`: decimal units, three significant digits.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if number < 1000 {
        return if number == 1 { "1 byte".to_owned() } else { format!("{number} bytes") };
    }
    let mut value = number as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// Formats a memory budget in the units that the user probably typed: binary units if the budget is a multiple of one.
pub(crate) fn budget(number: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB")] {
        if number > 0 && number.trailing_zeros() >= shift {
            return format!("{} {unit}", number >> shift);
        }
    }
    bytes(number)
}

/// Formats a duration with three significant digits, for example `37.0 us`, `4.20 ms` or `1.53 s`. Durations of 100
/// seconds and more have the form `2 min 5 s`, `5 h 12 min` or `9 d 4 h`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        seconds if seconds < 0.000_999_5 => format!("{} us", three_digits(seconds * 1e6)),
        seconds if seconds < 0.999_5 => format!("{} ms", three_digits(seconds * 1e3)),
        seconds if seconds < 99.95 => format!("{} s", three_digits(seconds)),
        _ => match (duration.as_secs(), duration.as_secs() / 60, duration.as_secs() / 3600) {
            (seconds, minutes, _) if minutes < 100 => format!("{minutes} min {} s", seconds % 60),
            (_, minutes, hours) if hours < 48 => format!("{hours} h {} min", minutes % 60),
            (_, _, hours) => format!("{} d {} h", hours / 24, hours % 24),
        },
    }
}

/// Formats a number below a thousand with three significant digits.
fn three_digits(number: f64) -> String {
    let digits = if number >= 99.95 { 0 } else { usize::from(number < 9.995) + 1 };
    format!("{number:.digits$}")
}

/// Formats a count with its noun, for example `1 row` or `2 rows`.
pub(crate) fn plural(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Parses a size: `4096`, `64MiB`, `64M`, `1g`, `10MB`. Single letters are binary units, as in other programs'
/// `--memory 64M`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let at = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..at].parse().map_err(|_| "a size is a number and a unit, like 64MiB".to_owned())?;
    let unit = match text[at..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err("units are KiB, MiB, GiB, TiB, kB, MB, GB and TB".to_owned()),
    };
    number.checked_mul(unit).ok_or_else(|| "too large".to_owned())
}

/// Truncates text to a number of columns, with an ellipsis for the missing part.
pub(crate) fn clip(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// Truncates a path to a number of columns. Drops its beginning, because the end says more about the file. If possible,
/// the result begins with a whole name.
pub(crate) fn clip_start(text: &str, columns: usize) -> String {
    let length = text.chars().count();
    if length <= columns {
        return text.to_owned();
    }
    let tail: String = text.chars().skip(length + 1 - columns).collect();
    let start = tail.find('/').filter(|&at| at + 1 < tail.len()).unwrap_or(0);
    format!("…{}", &tail[start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every size has three significant digits, and changes to the next unit before it would need four.
    #[test]
    fn bytes_have_three_digits() {
        for (number, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (999, "999 bytes"),
            (1000, "1.00 kB"),
            (9_995, "10.0 kB"),
            (99_950, "100 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (1_390_000_000, "1.39 GB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    /// Sizes can be typed in binary and decimal units. Invalid sizes are rejected.
    #[test]
    fn sizes_parse() {
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size("64 M"), Ok(64 << 20));
        assert_eq!(parse_size("1gb"), Ok(1_000_000_000));
        assert_eq!(parse_size("4096"), Ok(4096));
        for text in ["", "MiB", "-1", "1.5G", "3 apples", "99999999T"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    /// Counts are grouped, and times have a unit.
    #[test]
    fn counts_and_times() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        for (nanos, text) in [
            (0, "0.00 us"),
            (1_234, "1.23 us"),
            (37_000, "37.0 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (4_200_000, "4.20 ms"),
            (999_500_000, "1.00 s"),
            (99_940_000_000, "99.9 s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanos)), text);
        }
        for (seconds, text) in [
            (125, "2 min 5 s"),
            (5_999, "99 min 59 s"),
            (6_000, "1 h 40 min"),
            (172_799, "47 h 59 min"),
            (172_800, "2 d 0 h"),
            (9 * 86_400 + 4 * 3_600, "9 d 4 h"),
        ] {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
        assert_eq!(budget(64 << 20), "64 MiB");
        assert_eq!(clip("abcdef", 4), "abc…");
        assert_eq!(clip_start("abcdef", 4), "…def");
        assert_eq!(clip_start("ab/cd/ef", 7), "…/cd/ef");
        assert_eq!(clip_start("ab/cd/ef", 6), "…/ef");
        assert_eq!(clip_start("ab/cd/é", 2), "…é");
    }
}
