//! Reducers: functions of many rows. [`Keyspace::aggregate`](super::Keyspace::aggregate) caches their states for the
//! pages of a keyspace.

use std::borrow::Cow;
use std::fmt::Debug;

/// The reason why a reducer cannot reduce a row or combine states: any error type, or a text.
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

/// A function of many rows that can be composed from parts: given the states of two adjacent ranges, `combine` returns
/// the state of both together. [`Keyspace::aggregate`](crate::Keyspace::aggregate) computes the function for any range
/// in O(log n), because the keyspace caches the states of its pages.
///
/// [`Sum`], [`Min`] and [`Max`] are built in; implement this trait for other functions. A reducer must be
/// - deterministic: the same rows always have the same state, in any process;
/// - associative: `combine(combine(a, b), c)` equals `combine(a, combine(b, c))`, and combining with `identity` changes
///   nothing. It need not be commutative: the rows of `left` always precede those of `right`.
///
/// Its functions run while no lock is held. If one of them fails or panics, the call fails with
/// [`Error::Reducer`](crate::Error::Reducer) and has no other effect.
///
/// ```
/// use std::borrow::Cow;
/// use drumlin::{ReduceError, Reducer};
///
/// /// The length of the longest value, and the number of values of that length.
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
    /// A summary of some rows. The summaries of adjacent rows can be combined.
    type State: Send;
    /// The result of a reduction.
    type Output;

    /// Returns a name for the function that the reducer computes, of up to 1,024 bytes. All reducers of the same type
    /// and name that are used on a keyspace must compute the same function, because they share the states that the
    /// keyspace caches. A keyspace caches the states of the 32 most recently used names, or of fewer with a budget
    /// below 32 MiB.
    fn name(&self) -> Cow<'_, str>;

    /// Returns the state of no rows.
    fn identity(&self) -> Self::State;

    /// Returns the state of one row.
    ///
    /// # Errors
    /// Fails if the row has no state, in which case the call that reduces the row also fails.
    fn row(&self, key: &[u8], value: &[u8]) -> Result<Self::State, ReduceError>;

    /// Returns the length of the longest prefix of a value that [`row`](Reducer::row) needs. By default this is the
    /// whole value. [`row`](Reducer::row) receives no more bytes than this. If a value is stored outside of its leaf,
    /// no more of it is read.
    ///
    /// The memory for reading such values is part of the memory budget: aggregates and writers of values over 64 KiB
    /// share a thirty-second of it, and wait for each other. Values that are longer than this share are read one at a
    /// time. Their excess does not count towards the budget, like a value that `get` returns.
    fn prefix_bytes(&self) -> usize {
        usize::MAX
    }

    /// Combines the states of two ranges of rows. The rows of `left` precede those of `right`.
    ///
    /// # Errors
    /// Fails if the combined state does not exist, for example because a number overflows.
    fn combine(&self, left: Self::State, right: Self::State) -> Result<Self::State, ReduceError>;

    /// Appends the encoded state to `bytes`. The encoding should have only a few bytes, because a state is cached for
    /// each page of the keyspace.
    fn encode(&self, state: &Self::State, bytes: &mut Vec<u8>);

    /// Decodes a state.
    ///
    /// # Errors
    /// Fails if the bytes do not encode a state.
    fn decode(&self, bytes: &[u8]) -> Result<Self::State, ReduceError>;

    /// Returns the result for a range of rows with this state.
    fn output(&self, state: Self::State) -> Self::Output;
}

/// A number that a [`Field`] can contain: an integer of 8 to 64 bits, `f32` or `f64`.
///
/// ```
/// use drumlin::{Field, Keyspace, Max, Min, Number, Result};
///
/// /// The smallest and the largest number of a field.
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
    /// The type of a sum: `i128` for integers, which cannot overflow, and `f64` for floats. See [`Sum`](struct@Sum).
    type Sum;
}

pub(super) mod sealed {
    use crate::db::exact_sum::ExactSum;

    /// The operations on numbers that reducers need.
    pub trait Number: Sized {
        const NAME: &'static str;
        const BYTES: usize;
        /// The type of a sum while it is being computed.
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

    /// Implements the functions that are identical for all number types.
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
                    // The sum of 2⁶³ numbers of 64 bits fits into an `i128`.
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

/// The way to obtain a field's number from a row.
#[derive(Clone, Copy)]
enum Source<T> {
    BigEndian(usize),
    LittleEndian(usize),
    Function(&'static str, fn(&[u8], &[u8]) -> Option<T>),
}

/// A number in each row, either at a fixed position in the value or computed by a function from key and value. Rows
/// without such a number are ignored, for example if the value is too short.
///
/// ```
/// use drumlin::{Field, Max, Sum};
///
/// /// Values have 4 bytes for the customer and 8 bytes for the cents.
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
    /// Returns the field at this byte position of the value, with the most significant byte first.
    #[must_use]
    pub const fn big_endian(at: usize) -> Field<T> {
        Field(Source::BigEndian(at))
    }

    /// Returns the field at this byte position of the value, with the least significant byte first.
    #[must_use]
    pub const fn little_endian(at: usize) -> Field<T> {
        Field(Source::LittleEndian(at))
    }

    /// Returns a field whose number is computed by `function(key, value)`. Within a keyspace, a name must always denote
    /// the same function, because the states of reductions are cached by name.
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
/// Integers are summed in 128 bits, which cannot overflow. Floats are summed exactly and rounded once, to the nearest
/// `f64`, so the sum does not depend on the order of the additions. The sum is infinite only if an infinity was added
/// or the exact sum exceeds `f64::MAX`. The sum of a NaN, or of both infinities, is NaN.
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
    /// Returns the reducer that sums this field.
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

/// The smallest number of a field, or `None` if no row has the field. Floats are compared in total order
/// ([`f64::total_cmp`]).
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

/// The largest number of a field, or `None` if no row has the field. Floats are compared in total order
/// ([`f64::total_cmp`]).
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

/// Implements a reducer that selects one number of a field. Of two numbers, it selects the right one if `is_right`
/// returns `true`.
macro_rules! one_of_two {
    ($reducer:ident, $is_right:expr) => {
        impl<T: Number> $reducer<T> {
            /// Returns the reducer for this field.
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
