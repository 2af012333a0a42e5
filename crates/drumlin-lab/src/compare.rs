//! Compares cases, allowing for noise: how much the results of one case vary between repetitions.
//!
//! # Invariants
//! 1. No figure comes from a single run: a [`Spread`] has the median, minimum and maximum of several rounds.
//! 2. A [`Ratio`] has an interval. It reaches from the minimum to the maximum of the rounds, and is at least as wide as
//!    the difference between the first case of a round and its repetition at the end of the round.
//! 3. If a different point of the interval would reverse a judgement, the judgement is [`Holds::Inconclusive`].
//! 4. Effects are compared by their logarithms: half of a ninefold effect is a threefold one. See [`Size`].

use crate::figures::{self, Form};
use crate::measure::median;
use crate::report::{Chapter, Holds, Judgement, QUIETER};

/// A figure measured in several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Returns the spread of these rounds, or `None` if there are none.
    pub(crate) fn of(rounds: &[f64]) -> Option<Spread> {
        if rounds.is_empty() {
            return None;
        }
        let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Spread { median: median(rounds.to_vec()), least, most })
    }

    /// Formats the spread like `42.3 k/s (40.1 k/s to 43.0 k/s)`, with `unit` after each number.
    pub(crate) fn show(&self, form: Form, unit: &str) -> String {
        let show = |number| format!("{}{unit}", form.show(number));
        let [middle, least, most] = [self.median, self.least, self.most].map(show);
        if least == most { middle } else { format!("{middle} ({least} to {most})") }
    }
}

/// Returns the factor, at least 1, between the results of the same case at the beginning and at the end of the rounds.
pub(crate) fn noise(first: &[f64], again: &[f64]) -> f64 {
    let factor = median(again.to_vec()) / median(first.to_vec());
    if factor.is_finite() && factor > 0.0 { factor.max(1.0 / factor) } else { 1.0 }
}

/// The size of an effect that a source claims, as a factor above 1.
///
/// Effects are compared by the logarithm of the factor. An effect counts as part of the claim from a third of the
/// claimed logarithm, and as far more than claimed from twice that logarithm. For a claim of `c` times, these are the
/// factors `c^(1/3)` and `c^2`. So a claim of 2 times holds in part from a factor of 1.26, and a factor of 4 is far
/// more; a claim of 400 times holds in part from a factor of 7.4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Size {
    claimed: f64,
    /// The smallest factor that counts as the claimed effect.
    from: f64,
    /// `true` if the source gives the factor. Otherwise the lab chose it as a bound, and no effect counts as far more
    /// than claimed.
    has_figure: bool,
}

impl Size {
    /// Creates a size from the factor that the source gives.
    pub(crate) const fn of(claimed: f64) -> Size {
        assert!(claimed > 1.0, "a claim of no effect has no size");
        Size { claimed, from: claimed, has_figure: true }
    }

    /// Creates a bound chosen by the lab, for a source that says "more" without a figure.
    pub(crate) const fn bound(least: f64) -> Size {
        Size { has_figure: false, ..Size::of(least) }
    }

    /// Lets any factor of at least `from` confirm the claim, because the sources used other hardware and often rounded
    /// their figures.
    pub(crate) const fn from(self, from: f64) -> Size {
        assert!(from > 1.0 && from <= self.claimed, "less than the claimed factor, and an effect");
        Size { from, ..self }
    }

    /// Returns the smallest factor that counts as part of the claimed effect.
    fn part(self) -> f64 {
        self.claimed.cbrt().min(self.from)
    }

    /// Returns the smallest factor that counts as far more than claimed.
    fn far(self) -> f64 {
        if self.has_figure { self.claimed * self.claimed } else { f64::INFINITY }
    }

    /// Returns the largest factor that still counts as the claimed one. Needed for claims that a larger effect refutes
    /// too. On a logarithmic scale, this factor is as far above the claimed one as [`Size::from`] is below it.
    fn to(self) -> f64 {
        self.claimed * self.claimed / self.from
    }
}

/// The figure of one case divided by that of a second case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// The factor by which repetitions of the same case differ; see [`noise`].
    pub(crate) noise: f64,
}

impl Ratio {
    /// Divides the medians. The minimum and maximum are those of the ratios within each round, whose two measurements
    /// were made shortly after each other. Returns `None` if a case has no figures, or if the divisor is zero in a
    /// round.
    pub(crate) fn of(left: &[f64], right: &[f64], noise: f64) -> Option<Ratio> {
        let ratios: Vec<f64> = left.iter().zip(right).map(|(left, right)| left / right).collect();
        let spread = Spread::of(&ratios).filter(|spread| spread.least.is_finite() && spread.most.is_finite())?;
        // Ignore rounds in which only one case was measured: they would shift the medians.
        let rounds = ratios.len();
        let middle = median(left[..rounds].to_vec()) / median(right[..rounds].to_vec());
        Some(Ratio { median: middle, least: spread.least.min(middle), most: spread.most.max(middle), noise })
    }

    /// Returns the interval that is assumed to contain the true ratio.
    pub(crate) fn interval(&self) -> (f64, f64) {
        (self.least.min(self.median / self.noise), self.most.max(self.median * self.noise))
    }

    /// Judges the claim that the ratio is at least this size. The claim holds partly if the whole interval is above a
    /// third of the claimed effect.
    ///
    /// If the interval ends below the claimed effect and begins between 1 and a third of it, the verdict is
    /// [`Holds::NotInSize`]. If the interval begins at 1 or less instead, the claim does not hold. An interval that
    /// includes the claimed effect and begins below a third of it is inconclusive.
    pub(crate) fn at_least(&self, size: Size) -> Holds {
        let (low, high) = self.interval();
        match () {
            () if low >= size.from => Holds::Yes,
            () if low >= size.part() => Holds::Partly,
            () if high >= size.from => Holds::Inconclusive,
            () if low > 1.0 => Holds::NotInSize,
            () => Holds::No,
        }
    }

    /// Judges the claim that the ratio is about this size. Unlike [`Ratio::at_least`], this does not fully confirm the
    /// claim if the effect is larger, and returns [`Holds::NotInSize`] if the effect is certainly far larger.
    pub(crate) fn about(&self, size: Size) -> Holds {
        let (low, high) = self.interval();
        match self.at_least(size) {
            Holds::Yes if low >= size.far() => Holds::NotInSize,
            Holds::Yes if high > size.to() => Holds::Partly,
            holds => holds,
        }
    }

    /// Returns a sentence if the effect is certainly far more than claimed, and an empty string otherwise.
    pub(crate) fn excess(&self, size: Size) -> &'static str {
        if self.interval().0 >= size.far() { " That is far more than claimed." } else { "" }
    }

    /// Judges by [`Ratio::at_least`] and quotes these figures. The text adds a note if the effect is far more than
    /// claimed.
    pub(crate) fn judge_at_least(&self, size: Size, figures: impl Into<String>) -> Judgement {
        self.judge(self.at_least(size), figures.into() + self.excess(size))
    }

    /// Judges by [`Ratio::about`] and quotes these figures. The text adds a note if the effect is far more than
    /// claimed.
    pub(crate) fn judge_about(&self, size: Size, figures: impl Into<String>) -> Judgement {
        self.judge(self.about(size), figures.into() + self.excess(size))
    }

    /// Judges the claim that the two cases differ by at most this factor, which must exceed 1. If the cases certainly
    /// differ, but possibly by no more than the factor, the claim holds partly.
    pub(crate) fn alike(&self, factor: f64) -> Holds {
        assert!(factor > 1.0, "no two measurements are equal");
        let (low, high) = self.interval();
        let inside = 1.0 / factor..=factor;
        match () {
            () if inside.contains(&low) && inside.contains(&high) => Holds::Yes,
            () if low > factor || high < 1.0 / factor => Holds::No,
            () if low > 1.0 || high < 1.0 => Holds::Partly,
            () => Holds::Inconclusive,
        }
    }

    /// Formats the ratio like `1.82 times (1.70 to 1.95)`.
    pub(crate) fn show(&self) -> String {
        let [middle, least, most] = [self.median, self.least, self.most].map(figures::digits);
        if least == most { format!("{middle} times") } else { format!("{middle} times ({least} to {most})") }
    }

    /// Returns the condition that the machine would have to meet for this ratio to be conclusive.
    pub(crate) fn doubt(&self) -> String {
        format!(
            "{QUIETER} (the rounds gave {} to {} times, and the same case run again differs by {} times)",
            figures::digits(self.least),
            figures::digits(self.most),
            figures::digits(self.noise)
        )
    }

    /// Creates a judgement with these figures. An inconclusive one also names the missing condition.
    pub(crate) fn judge(&self, holds: Holds, figures: impl Into<String>) -> Judgement {
        match holds {
            Holds::Inconclusive => Judgement::inconclusive(self.doubt(), figures),
            holds => Judgement::new(holds, figures),
        }
    }
}

/// Judges the claim that a ratio is at least this size. `describe` puts the figures into words. If the ratio could not
/// be measured, the judgement is inconclusive and names the condition `missing`.
pub(crate) fn at_least(
    ratio: Option<Ratio>,
    size: Size,
    missing: Option<&str>,
    describe: impl FnOnce(Ratio) -> String,
) -> Judgement {
    measured(ratio, missing, |ratio| ratio.judge_at_least(size, describe(ratio)))
}

/// Judges by a figure that may be absent. `missing` names the condition that prevented the measurement.
pub(crate) fn measured<T>(figure: Option<T>, missing: Option<&str>, judge: impl FnOnce(T) -> Judgement) -> Judgement {
    match figure {
        Some(figure) => judge(figure),
        None => Judgement::inconclusive(missing.unwrap_or("a case that failed or was not run"), ""),
    }
}

/// A source's claim, and the rule that judges it by an experiment's figures. `judge` is a pure function, so that a test
/// can produce every verdict.
#[derive(Debug)]
pub(crate) struct Claim<F: ?Sized> {
    pub(crate) source: &'static str,
    pub(crate) text: &'static str,
    pub(crate) judge: fn(&F) -> Judgement,
}

impl<F: ?Sized> Claim<F> {
    pub(crate) fn put(&self, chapter: &mut Chapter, figures: &F) {
        chapter.judged(self.source, self.text, (self.judge)(figures));
    }
}

/// Combines the parts of a claim. The claim holds if all parts do, fails if all parts fail, and is inconclusive if any
/// part is inconclusive. If no part holds even partly, but at least one shows some effect, the verdict is
/// [`Holds::NotInSize`].
pub(crate) fn all(parts: impl IntoIterator<Item = Holds>) -> Holds {
    let parts: Vec<Holds> = parts.into_iter().collect();
    let every = |holds: &[Holds]| parts.iter().all(|part| holds.contains(part));
    match () {
        () if parts.is_empty() || parts.contains(&Holds::Inconclusive) => Holds::Inconclusive,
        () if every(&[Holds::Yes]) => Holds::Yes,
        () if every(&[Holds::No]) => Holds::No,
        () if every(&[Holds::No, Holds::NotInSize]) => Holds::NotInSize,
        () => Holds::Partly,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(rounds: [f64; 3], noise: f64) -> Ratio {
        Ratio::of(&rounds, &[1.0; 3], noise).unwrap()
    }

    /// A claim of "twice as much" can get every verdict. If repetitions of the same case also differ by a factor of
    /// two, it is inconclusive.
    #[test]
    fn a_claim_of_more_comes_out_each_way() {
        let twice = Size::of(2.0);
        assert_eq!(ratio([2.1, 2.5, 2.2], 1.02).at_least(twice), Holds::Yes);
        assert_eq!(ratio([1.4, 1.5, 1.6], 1.1).at_least(twice), Holds::Partly);
        assert_eq!(ratio([1.9, 2.2, 2.4], 1.1).at_least(twice), Holds::Partly);
        assert_eq!(ratio([1.1, 1.2, 1.15], 1.01).at_least(twice), Holds::NotInSize);
        assert_eq!(ratio([0.9, 1.1, 1.0], 1.1).at_least(twice), Holds::No);
        assert_eq!(ratio([0.4, 0.5, 0.5], 1.1).at_least(twice), Holds::No);
        assert_eq!(ratio([2.1, 2.5, 2.2], 2.3).at_least(twice), Holds::Inconclusive);
        assert_eq!(ratio([0.8, 2.5, 1.5], 1.0).at_least(twice), Holds::Inconclusive);
    }

    /// An effect counts as part of the claim from a third of the claimed logarithm, which is the cube root of the
    /// factor.
    #[test]
    fn a_part_is_a_third_of_the_effect() {
        assert!((Size::of(2.0).part() - 1.26).abs() < 0.001 && (Size::of(400.0).part() - 7.37).abs() < 0.01);
        assert_eq!(ratio([1.25, 1.25, 1.25], 1.0).at_least(Size::of(2.0)), Holds::NotInSize);
        assert_eq!(ratio([1.27, 1.27, 1.27], 1.0).at_least(Size::of(2.0)), Holds::Partly);
        // Copies of 8 KiB pieces: the effect is 200 times smaller than claimed.
        assert_eq!(ratio([1.91, 1.98, 2.0], 1.01).at_least(Size::of(400.0)), Holds::NotInSize);
        // The rate fell by 6 %, but the source claims a collapse.
        assert_eq!(ratio([1.04, 1.06, 1.21], 1.03).at_least(Size::bound(1.5)), Holds::NotInSize);
        assert_eq!(ratio([1.7, 1.8, 1.9], 1.0).at_least(Size::of(2.0).from(1.6)), Holds::Yes);
    }

    /// An effect of more than twice the claimed logarithm is reported. It refutes a claim of "about" that size.
    #[test]
    fn far_more_than_claimed_is_told() {
        // The source claims half the rate with 128 KiB of read-ahead; the lab measured a twentieth.
        let (half, twentieth) = (Size::of(2.04).from(1.6), ratio([18.6, 19.8, 22.4], 1.1));
        let judged = twentieth.judge_at_least(half, "19.8 times.");
        assert_eq!((judged.holds, judged.why.as_str()), (Holds::Yes, "19.8 times. That is far more than claimed."));
        assert_eq!(twentieth.about(half), Holds::NotInSize);
        assert!(twentieth.judge_about(half, "").why.contains("far more"));
        assert_eq!(ratio([1.9, 2.0, 2.2], 1.1).about(half), Holds::Yes);
        assert_eq!(ratio([3.0, 3.1, 3.2], 1.0).about(half), Holds::Partly);
        assert_eq!(ratio([1.3, 1.35, 1.4], 1.0).about(half), Holds::Partly);
        assert_eq!(ratio([1.0, 1.1, 1.2], 1.0).about(half), Holds::No);
        assert_eq!(ratio([1.1, 3.0, 9.0], 1.0).about(half), Holds::Inconclusive);
        // No effect can exceed a claim without a figure.
        assert_eq!(twentieth.judge_at_least(Size::bound(1.5), "19.8 times.").why, "19.8 times.");
        assert_eq!(ratio([3.9, 4.0, 4.1], 1.0).judge_at_least(half, "").why, "");
    }

    /// A claim that two cases are the same can get every verdict.
    #[test]
    fn a_claim_of_likeness_comes_out_each_way() {
        assert_eq!(ratio([0.95, 1.1, 1.0], 1.05).alike(1.25), Holds::Yes);
        assert_eq!(ratio([1.2, 1.3, 1.1], 1.05).alike(1.25), Holds::Partly);
        assert_eq!(ratio([2.0, 2.2, 1.9], 1.05).alike(1.25), Holds::No);
        assert_eq!(ratio([0.4, 0.5, 0.45], 1.05).alike(1.25), Holds::No);
        assert_eq!(ratio([0.95, 1.1, 1.0], 1.5).alike(1.25), Holds::Inconclusive);
        assert_eq!(ratio([0.9, 1.5, 1.3], 1.0).alike(1.25), Holds::Inconclusive);
    }

    /// Ratios are taken within a round; a case without figures has no ratio.
    #[test]
    fn ratios_are_taken_within_rounds() {
        // The drive halved its rate in the third round, for both cases.
        let found = Ratio::of(&[200.0, 210.0, 100.0], &[100.0, 105.0, 50.0], 1.0).unwrap();
        assert_eq!((found.median, found.least, found.most), (2.0, 2.0, 2.0));
        assert_eq!(Ratio::of(&[], &[1.0], 1.0), None);
        assert_eq!(Ratio::of(&[1.0], &[0.0], 1.0), None);
        assert_eq!(noise(&[10.0, 10.0, 10.0], &[8.0, 8.0, 9.0]), 1.25);
        assert_eq!(noise(&[], &[]), 1.0);
        assert_eq!(Spread::of(&[]), None);
        let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(spread.show(Form::Rate, "/s"), "2.00/s (1.00/s to 3.00/s)");
    }

    /// The verdicts on the parts of a claim are combined into one.
    #[test]
    fn parts_are_combined() {
        use Holds::{Inconclusive, No, NotInSize, Partly, Yes};
        assert_eq!(all([No, NotInSize]), NotInSize);
        assert_eq!(all([NotInSize, Yes]), Partly);
        assert_eq!(all([Yes, Yes]), Yes);
        assert_eq!(all([No, No]), No);
        assert_eq!(all([Yes, No]), Partly);
        assert_eq!(all([Yes, Inconclusive]), Inconclusive);
    }

    /// An inconclusive verdict always names the missing condition.
    #[test]
    #[should_panic(expected = "names the missing condition")]
    fn a_doubt_without_a_reason_is_refused() {
        let _ = Judgement::new(Holds::Inconclusive, "");
    }
}
