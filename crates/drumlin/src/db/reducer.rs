//! Reducers: functions of many rows that [`Keyspace::aggregate`](super::Keyspace::aggregate) keeps for parts of a
//! keyspace.

use std::borrow::Cow;
use std::fmt::Debug;

use super::exact_sum::ExactSum;

/// The reason why a reducer can't reduce: any error, or a text.
///
/// ```
/// use drumlin::ReduceError;
///
/// fn number(value: &[u8]) -> Result<u32, ReduceError> {
///     if value.is_empty() {
///         return Err("a row without a value".into());
///     }
///     Ok(u32::from_be_bytes(value.try_into()?))
/// }
/// # assert!(number(b"four").is_ok() && number(b"").is_err() && number(b"5 more").is_err());
/// ```
pub type ReduceError = Box<dyn std::error::Error + Send + Sync>;

/// A function of many rows that can be put together from parts: `combine` of the states of two ranges that lie side by
/// side is the state of both. [`Keyspace::aggregate`](crate::Keyspace::aggregate) computes it for any range in
/// O(log n), since the states of parts of the keyspace are kept.
///
/// [`Sum`], [`Min`] and [`Max`] are there; this trait is for others. A reducer has to be
/// - deterministic: the same rows have the same state, whenever and in whatever process;
/// - associative: `combine(combine(a, b), c)` is `combine(a, combine(b, c))`, and `identity` changes nothing. It need
///   not be commutative: `left` is always in front of `right`.
///
/// Its functions run under no lock. An error or a panic ends the call with
/// [`Error::Reducer`](crate::Error::Reducer), and harms nothing.
///
/// ```
/// use std::borrow::Cow;
/// use drumlin::{ReduceError, Reducer};
///
/// /// The longest value, in bytes, and how many there are of it.
/// struct Longest;
///
/// impl Reducer for Longest {
///     type State = (u32, u32);
///     type Output = (u32, u32);
///
///     fn name(&self) -> Cow<'_, str> {
///         "longest values".into()
///     }
///     fn identity(&self) -> (u32, u32) {
///         (0, 0)
///     }
///     fn row(&self, _key: &[u8], value: &[u8]) -> Result<(u32, u32), ReduceError> {
///         Ok((u32::try_from(value.len())?, 1))
///     }
///     fn combine(&self, left: (u32, u32), right: (u32, u32)) -> Result<(u32, u32), ReduceError> {
///         Ok(match left.0.cmp(&right.0) {
///             std::cmp::Ordering::Less => right,
///             std::cmp::Ordering::Equal => (left.0, left.1.checked_add(right.1).ok_or("too many")?),
///             std::cmp::Ordering::Greater => left,
///         })
///     }
///     fn encode(&self, state: &(u32, u32), bytes: &mut Vec<u8>) {
///         bytes.extend(state.0.to_be_bytes());
///         bytes.extend(state.1.to_be_bytes());
///     }
///     fn decode(&self, bytes: &[u8]) -> Result<(u32, u32), ReduceError> {
///         let (length, count) = bytes.split_at(4);
///         Ok((u32::from_be_bytes(length.try_into()?), u32::from_be_bytes(count.try_into()?)))
///     }
///     fn output(&self, state: (u32, u32)) -> (u32, u32) {
///         state
///     }
/// }
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// let k = db.keyspace("k")?;
/// for value in ["a", "bbb", "cc", "ddd"] {
///     k.insert(value, value)?;
/// }
/// assert_eq!(k.aggregate(&Longest, ..)?, (3, 2));
/// # Ok::<(), drumlin::Error>(())
/// ```
pub trait Reducer: Send + Sync + 'static {
    /// The knowledge of some rows: as much as it takes to combine it with that of others.
    type State: Send;
    /// The answer.
    type Output;

    /// A name for what it computes, of up to 1,024 bytes. Of one type and name, all reducers that are used on a
    /// keyspace must compute the same: states that one has made answer for the others. A keyspace keeps the states of
    /// the 32 names that were used last, and of fewer in a budget below 32 MiB.
    fn name(&self) -> Cow<'_, str>;

    /// The state of no rows.
    fn identity(&self) -> Self::State;

    /// The state of one row.
    ///
    /// # Errors
    /// If the row has none: the call that reduces it fails.
    fn row(&self, key: &[u8], value: &[u8]) -> Result<Self::State, ReduceError>;

    /// The most bytes of a value, from its first on, that [`row`](Reducer::row) looks at; it is shown no more of them.
    /// By default all. Of a value that is not in its leaf, no more are read.
    ///
    /// Bytes read of such values are in the memory budget: aggregates and writers of values over 64 KiB share a
    /// thirty-second of it, and wait for each other. Of longer ones than that one at a time is in memory, and what
    /// exceeds the part comes on top, as a value that `get` returns does.
    fn prefix_bytes(&self) -> usize {
        usize::MAX
    }

    /// The state of two ranges of rows, `left` in front of `right`.
    ///
    /// # Errors
    /// If there is none, for example because a number overflows.
    fn combine(&self, left: Self::State, right: Self::State) -> Result<Self::State, ReduceError>;

    /// Appends a state to `bytes`. A few bytes are best: a state is kept for each page of the keyspace.
    fn encode(&self, state: &Self::State, bytes: &mut Vec<u8>);

    /// The state that was encoded in these bytes.
    ///
    /// # Errors
    /// If there is none.
    fn decode(&self, bytes: &[u8]) -> Result<Self::State, ReduceError>;

    /// The answer for a range of rows with this state.
    fn output(&self, state: Self::State) -> Self::Output;
}

/// A number that a [`Field`] can hold: integers of 8 to 64 bits, `f32` and `f64`.
///
/// ```
/// use drumlin::{Field, Keyspace, Max, Min, Number, Result};
///
/// /// The least and the greatest number of a field.
/// fn extremes<T: Number>(keyspace: &Keyspace, field: Field<T>) -> Result<Option<(T, T)>> {
///     let least = keyspace.aggregate(&Min::of(field), ..)?;
///     Ok(least.zip(keyspace.aggregate(&Max::of(field), ..)?))
/// }
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// # let k = db.keyspace("k")?;
/// k.insert("a", 2.5f32.to_be_bytes())?;
/// assert_eq!(extremes(&k, Field::<f32>::big_endian(0))?, Some((2.5, 2.5)));
/// # Ok::<(), drumlin::Error>(())
/// ```
pub trait Number: Copy + Debug + Send + Sync + sealed::Number<Total = Self::Sum> + 'static {
    /// The sum of many: `i128` of integers, which can't overflow; `f64` of floats. See [`Sum`](struct@Sum).
    type Sum;
}

pub(super) mod sealed {
    use super::ExactSum;

    /// The parts of a number that reducers need.
    pub trait Number: Sized {
        const NAME: &'static str;
        const BYTES: usize;
        /// A sum on its way, and once it is made.
        type Running: Send;
        type Total;
        fn from_be(bytes: &[u8]) -> Self;
        fn from_le(bytes: &[u8]) -> Self;
        fn append_be(self, bytes: &mut Vec<u8>);
        fn precedes(self, other: Self) -> bool;
        fn zero() -> Self::Running;
        fn running(self) -> Self::Running;
        fn add(left: Self::Running, right: Self::Running) -> Self::Running;
        fn encode(sum: &Self::Running, bytes: &mut Vec<u8>);
        fn decode(bytes: &[u8]) -> Option<Self::Running>;
        fn total(sum: Self::Running) -> Self::Total;
    }

    /// The functions that all numbers have alike.
    macro_rules! bytes_of {
        ($number:ident) => {
            const NAME: &'static str = stringify!($number);
            const BYTES: usize = size_of::<$number>();
            fn from_be(bytes: &[u8]) -> $number {
                $number::from_be_bytes(bytes.try_into().expect("so many bytes are given"))
            }
            fn from_le(bytes: &[u8]) -> $number {
                $number::from_le_bytes(bytes.try_into().expect("so many bytes are given"))
            }
            fn append_be(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_be_bytes());
            }
        };
    }

    macro_rules! integers {
        ($($number:ident)*) => { $(
            impl Number for $number {
                bytes_of!($number);
                type Running = i128;
                type Total = i128;
                fn precedes(self, other: $number) -> bool {
                    self < other
                }
                fn zero() -> i128 {
                    0
                }
                fn running(self) -> i128 {
                    i128::from(self)
                }
                fn add(left: i128, right: i128) -> i128 {
                    // 2⁶³ rows of 64 bits each fit.
                    left.checked_add(right).expect("fewer than 2⁶³ rows are summed")
                }
                fn encode(sum: &i128, bytes: &mut Vec<u8>) {
                    bytes.extend(sum.to_be_bytes());
                }
                fn decode(bytes: &[u8]) -> Option<i128> {
                    bytes.try_into().ok().map(i128::from_be_bytes)
                }
                fn total(sum: i128) -> i128 {
                    sum
                }
            }
            impl super::Number for $number {
                type Sum = i128;
            }
        )* };
    }
    integers!(u8 u16 u32 u64 i8 i16 i32 i64);

    macro_rules! floats {
        ($($number:ident)*) => { $(
            impl Number for $number {
                bytes_of!($number);
                type Running = ExactSum;
                type Total = f64;
                fn precedes(self, other: $number) -> bool {
                    self.total_cmp(&other).is_lt()
                }
                fn zero() -> ExactSum {
                    ExactSum::default()
                }
                fn running(self) -> ExactSum {
                    ExactSum::of(f64::from(self))
                }
                fn add(left: ExactSum, right: ExactSum) -> ExactSum {
                    left.plus(right)
                }
                fn encode(sum: &ExactSum, bytes: &mut Vec<u8>) {
                    sum.encode(bytes);
                }
                fn decode(bytes: &[u8]) -> Option<ExactSum> {
                    ExactSum::decode(bytes)
                }
                fn total(sum: ExactSum) -> f64 {
                    sum.rounded()
                }
            }
            impl super::Number for $number {
                type Sum = f64;
            }
        )* };
    }
    floats!(f32 f64);
}

/// The place of a number in a row.
#[derive(Clone, Copy)]
enum Source<T> {
    BigEndian(usize),
    LittleEndian(usize),
    Function(&'static str, fn(&[u8], &[u8]) -> Option<T>),
}

/// A number in each row: at a place of the value, or found by a function of key and value. A row without it, whose
/// value is too short, does not count.
///
/// ```
/// use drumlin::{Field, Max, Sum};
///
/// /// Values are 4 bytes of customer, 8 bytes of cents.
/// const CENTS: Field<u64> = Field::big_endian(4);
/// const LENGTH: Field<u32> = Field::of("length", |_key, value| u32::try_from(value.len()).ok());
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// let orders = db.keyspace("orders")?;
/// orders.insert("2026-11-21/1", [&7u32.to_be_bytes()[..], &450u64.to_be_bytes()].concat())?;
/// orders.insert("2026-11-22/1", [&9u32.to_be_bytes()[..], &1250u64.to_be_bytes()].concat())?;
/// assert_eq!(orders.aggregate(&Sum::of(CENTS), ..)?, 1700);
/// assert_eq!(orders.aggregate(&Max::of(CENTS), .."2026-11-22")?, Some(450));
/// assert_eq!(orders.aggregate(&Sum::of(LENGTH), ..)?, 24);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Field<T>(Source<T>);

impl<T> Debug for Field<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Source::BigEndian(at) => write!(f, "Field(big-endian at {at})"),
            Source::LittleEndian(at) => write!(f, "Field(little-endian at {at})"),
            Source::Function(name, _) => write!(f, "Field({name:?})"),
        }
    }
}

impl<T: Number> Field<T> {
    /// The number whose bytes begin at this byte of the value, the most significant first.
    #[must_use]
    pub const fn big_endian(at: usize) -> Field<T> {
        Field(Source::BigEndian(at))
    }

    /// The number whose bytes begin at this byte of the value, the least significant first.
    #[must_use]
    pub const fn little_endian(at: usize) -> Field<T> {
        Field(Source::LittleEndian(at))
    }

    /// The number that a function finds in key and value. On one keyspace a name must stand for one function: sums that
    /// were kept of one are not those of another.
    #[must_use]
    pub const fn of(name: &'static str, function: fn(&[u8], &[u8]) -> Option<T>) -> Field<T> {
        Field(Source::Function(name, function))
    }

    fn get(&self, key: &[u8], value: &[u8]) -> Option<T> {
        let bytes = |at: usize| value.get(at..at.checked_add(T::BYTES)?);
        match self.0 {
            Source::BigEndian(at) => bytes(at).map(T::from_be),
            Source::LittleEndian(at) => bytes(at).map(T::from_le),
            Source::Function(_, function) => function(key, value),
        }
    }

    fn prefix_bytes(&self) -> usize {
        match self.0 {
            Source::BigEndian(at) | Source::LittleEndian(at) => at.saturating_add(T::BYTES),
            Source::Function(..) => usize::MAX,
        }
    }

    fn name(&self) -> String {
        match self.0 {
            Source::BigEndian(at) => format!("{} at {at}, big-endian", T::NAME),
            Source::LittleEndian(at) => format!("{} at {at}, little-endian", T::NAME),
            Source::Function(name, _) => format!("{} {name}", T::NAME),
        }
    }
}

/// The sum of a field.
///
/// Integers are summed in 128 bits, which can't overflow. Floats are summed exactly and rounded once, to the nearest
/// `f64`: the sum is the same in whatever parts it was made. It is infinite only if an infinity was summed or the exact
/// sum exceeds `f64::MAX`; of NaN, or of both infinities, it is NaN.
///
/// ```
/// use drumlin::{Field, Sum};
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// let k = db.keyspace("k")?;
/// for (key, number) in [("a", 1e100), ("b", 1.0), ("c", -1e100)] {
///     k.insert(key, f64::to_be_bytes(number))?;
/// }
/// assert_eq!(k.aggregate(&Sum::of(Field::<f64>::big_endian(0)), ..)?, 1.0);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sum<T>(Field<T>);

impl<T: Number> Sum<T> {
    /// The sum of this field.
    #[must_use]
    pub const fn of(field: Field<T>) -> Sum<T> {
        Sum(field)
    }
}

impl<T: Number> Reducer for Sum<T> {
    type State = <T as sealed::Number>::Running;
    type Output = <T as Number>::Sum;

    fn name(&self) -> Cow<'_, str> {
        self.0.name().into()
    }

    fn identity(&self) -> Self::State {
        T::zero()
    }

    fn row(&self, key: &[u8], value: &[u8]) -> Result<Self::State, ReduceError> {
        Ok(self.0.get(key, value).map_or_else(T::zero, T::running))
    }

    fn prefix_bytes(&self) -> usize {
        self.0.prefix_bytes()
    }

    fn combine(&self, left: Self::State, right: Self::State) -> Result<Self::State, ReduceError> {
        Ok(T::add(left, right))
    }

    fn encode(&self, state: &Self::State, bytes: &mut Vec<u8>) {
        <T as sealed::Number>::encode(state, bytes);
    }

    fn decode(&self, bytes: &[u8]) -> Result<Self::State, ReduceError> {
        <T as sealed::Number>::decode(bytes).ok_or_else(|| "not a sum".into())
    }

    fn output(&self, state: Self::State) -> Self::Output {
        T::total(state)
    }
}

/// The least number of a field; `None` of no rows. Floats are in their total order ([`f64::total_cmp`]).
///
/// ```
/// use drumlin::{Field, Min};
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// let k = db.keyspace("k")?;
/// k.insert("a", [5])?;
/// k.insert("b", [3])?;
/// let least = Min::of(Field::<u8>::big_endian(0));
/// assert_eq!(k.aggregate(&least, ..)?, Some(3));
/// assert_eq!(k.aggregate(&least, "x"..)?, None);
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Min<T>(Field<T>);

/// The greatest number of a field; `None` of no rows. Floats are in their total order ([`f64::total_cmp`]).
///
/// ```
/// use drumlin::{Field, Max};
///
/// # let db = drumlin::Config::in_memory().open("")?;
/// let k = db.keyspace("k")?;
/// k.insert("a", [5])?;
/// k.insert("b", [3])?;
/// assert_eq!(k.aggregate(&Max::of(Field::<u8>::big_endian(0)), "b"..)?, Some(3));
/// # Ok::<(), drumlin::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Max<T>(Field<T>);

/// A reducer that keeps one number of a field: the right one of two, where `is_right` says so.
macro_rules! one_of_two {
    ($reducer:ident, $is_right:expr) => {
        impl<T: Number> $reducer<T> {
            /// That of this field.
            #[must_use]
            pub const fn of(field: Field<T>) -> $reducer<T> {
                $reducer(field)
            }
        }

        impl<T: Number> Reducer for $reducer<T> {
            type State = Option<T>;
            type Output = Option<T>;

            fn name(&self) -> Cow<'_, str> {
                self.0.name().into()
            }

            fn identity(&self) -> Option<T> {
                None
            }

            fn row(&self, key: &[u8], value: &[u8]) -> Result<Option<T>, ReduceError> {
                Ok(self.0.get(key, value))
            }

            fn prefix_bytes(&self) -> usize {
                self.0.prefix_bytes()
            }

            fn combine(&self, left: Option<T>, right: Option<T>) -> Result<Option<T>, ReduceError> {
                Ok(match (left, right) {
                    (Some(left), Some(right)) => Some(if $is_right(left, right) { right } else { left }),
                    (left, right) => left.or(right),
                })
            }

            fn encode(&self, state: &Option<T>, bytes: &mut Vec<u8>) {
                state.iter().for_each(|number| number.append_be(bytes));
            }

            fn decode(&self, bytes: &[u8]) -> Result<Option<T>, ReduceError> {
                match bytes.len() {
                    0 => Ok(None),
                    length if length == T::BYTES => Ok(Some(T::from_be(bytes))),
                    length => Err(format!("a {} of {length} bytes", T::NAME).into()),
                }
            }

            fn output(&self, state: Option<T>) -> Option<T> {
                state
            }
        }
    };
}

one_of_two!(Min, |left: T, right: T| right.precedes(left));
one_of_two!(Max, |left: T, right: T| left.precedes(right));
