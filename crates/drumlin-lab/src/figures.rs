//! Formats numbers for people.

/// The form in which a column's numbers are shown, and their unit in the JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Text instead of a number.
    Text,
    /// A whole number.
    Count,
    /// A number per second.
    Rate,
    /// Bytes, in decimal units.
    Bytes,
    /// Bytes per second.
    Bandwidth,
    /// Microseconds.
    Micros,
    /// Nanoseconds.
    Nanos,
    /// Seconds.
    Seconds,
    /// A fraction, shown in percent.
    Share,
    /// One number divided by another.
    Ratio,
}

impl Form {
    /// Returns the unit of the raw number.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Form::Text => "text",
            Form::Count => "count",
            Form::Rate => "per second",
            Form::Bytes => "bytes",
            Form::Bandwidth => "bytes per second",
            Form::Micros => "microseconds",
            Form::Nanos => "nanoseconds",
            Form::Seconds => "seconds",
            Form::Share => "share",
            Form::Ratio => "ratio",
        }
    }

    /// Formats a number with its unit, as briefly as possible.
    #[must_use]
    pub fn show(self, number: f64) -> String {
        match self {
            Form::Text | Form::Count => count(number),
            Form::Rate => rate(number),
            Form::Bytes => bytes(number),
            Form::Bandwidth => format!("{}/s", bytes(number)),
            Form::Micros => micros(number),
            Form::Nanos => micros(number / 1000.0),
            Form::Seconds => micros(number * 1e6),
            Form::Share => share(number),
            Form::Ratio => digits(number),
        }
    }
}

/// Returns the text with no-break spaces between numbers and their units.
pub(crate) fn unbroken(text: &str) -> String {
    const UNITS: [&str; 21] = [
        "%", "s", "ms", "us", "ns", "min", "h", "B", "kB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "k", "M",
        "bytes", "times", "x",
    ];
    let mut shown = String::with_capacity(text.len());
    for (index, word) in text.split(' ').enumerate() {
        let unit = word.trim_end_matches([')', ',', '.', ';', ':']).trim_end_matches("/s");
        let follows_number = shown.ends_with(|last: char| last.is_ascii_digit());
        match (index == 0, follows_number && UNITS.contains(&unit)) {
            (true, _) => {}
            (false, true) => shown.push('\u{a0}'),
            (false, false) => shown.push(' '),
        }
        shown.push_str(word);
    }
    shown
}

/// Formats a number like `1,234,567`.
pub(crate) fn count(number: f64) -> String {
    let text = format!("{:.0}", number.abs());
    let mut grouped = String::new();
    for (index, digit) in text.chars().enumerate() {
        if index > 0 && (text.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if number <= -0.5 { format!("-{grouped}") } else { grouped }
}

/// Formats a number with three significant digits.
pub(crate) fn digits(number: f64) -> String {
    match number.abs() {
        size if size == 0.0 || size >= 99.95 => count(number),
        size if size >= 9.995 => format!("{number:.1}"),
        size if size >= 0.9995 => format!("{number:.2}"),
        size if size >= 0.0095 => format!("{number:.3}"),
        _ => format!("{number:.5}"),
    }
}

fn rate(number: f64) -> String {
    match number {
        number if number >= 9_995_000.0 => format!("{:.1} M", number / 1e6),
        number if number >= 999_500.0 => format!("{:.2} M", number / 1e6),
        number if number >= 99_950.0 => format!("{:.0} k", number / 1e3),
        number if number >= 9_995.0 => format!("{:.1} k", number / 1e3),
        number if number >= 99.95 => count(number),
        number => digits(number),
    }
}

/// Formats bytes like `17 bytes`, `4.10 kB` or `1.39 GB`.
pub(crate) fn bytes(number: f64) -> String {
    const UNITS: [&str; 6] = ["bytes", "kB", "MB", "GB", "TB", "PB"];
    let mut value = number;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 if value == 1.0 => "1 byte".to_owned(),
        0 => format!("{value:.0} bytes"),
        _ => format!("{} {}", digits(value), UNITS[unit]),
    }
}

/// Formats a configured size. Uses binary units if the size is a whole number of them.
pub(crate) fn size(number: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if number > 0 && number.trailing_zeros() >= shift {
            return format!("{} {unit}", number >> shift);
        }
    }
    bytes(number as f64)
}

/// Formats a time like `0.31 us`, `37 us`, `4.20 ms`, `1.53 s` or `2 min 5 s`.
pub(crate) fn micros(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        number if number < 0.0995 => format!("{:.0} ns", number * 1000.0),
        number if number < 999.5 => format!("{} us", digits(number)),
        number if number < 999_500.0 => format!("{} ms", digits(number / 1e3)),
        number if number < 99_950_000.0 => format!("{} s", digits(number / 1e6)),
        number => format!("{} min {:.0} s", (number / 6e7).floor(), (number / 1e6) % 60.0),
    }
}

fn share(number: f64) -> String {
    let percent = number * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        percent if percent >= 9.95 => format!("{percent:.0} %"),
        percent if percent >= 0.0995 => format!("{percent:.1} %"),
        percent => format!("{percent:.3} %"),
    }
}

/// Formats a count with its noun, like `1 file` or `2 files`.
pub(crate) fn plural(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number as f64), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in every form are short and have their unit.
    #[test]
    fn numbers_are_short() {
        for (form, number, text) in [
            (Form::Count, 1_234_567.0, "1,234,567"),
            (Form::Rate, 547_479.0, "547 k"),
            (Form::Rate, 1_250_000.0, "1.25 M"),
            (Form::Rate, 3_210.4, "3,210"),
            (Form::Bytes, 1_390_000_000.0, "1.39 GB"),
            (Form::Bytes, 17.0, "17 bytes"),
            (Form::Bandwidth, 2_450_000_000.0, "2.45 GB/s"),
            (Form::Micros, 38.94, "38.9 us"),
            (Form::Micros, 2_628.0, "2.63 ms"),
            (Form::Micros, 0.08, "80 ns"),
            (Form::Micros, 0.0, "0"),
            (Form::Seconds, 125.0, "2 min 5 s"),
            (Form::Share, 0.000_04, "0.004 %"),
            (Form::Share, 0.456, "46 %"),
            (Form::Ratio, 31.97, "32.0"),
        ] {
            assert_eq!(form.show(number), text);
        }
        assert_eq!(
            unbroken(" (50 % to 72 %), 2 min 5 s, 3 GB/s of 4 cases "),
            " (50\u{a0}% to 72\u{a0}%), 2\u{a0}min 5\u{a0}s, 3\u{a0}GB/s of 4 cases "
        );
        assert_eq!(size(64 << 20), "64 MiB");
        assert_eq!(size(1_000_000_001), "1.00 GB");
    }
}
