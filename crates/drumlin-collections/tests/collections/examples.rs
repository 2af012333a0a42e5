//! The example programs print the expected output.

use drumlin::Database;

use crate::documents::database;

#[path = "../../examples/shop.rs"]
mod shop;
#[path = "../../examples/task_queue.rs"]
mod task_queue;
#[path = "../../examples/time_series.rs"]
mod time_series;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn output(run: fn(&Database, &mut Vec<u8>) -> Outcome) -> String {
    let mut out = Vec::new();
    run(&database(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The shop lists a customer's orders, and the revenue by month and category.
#[test]
fn the_shop_prints_its_revenue() {
    let expected = "\
orders of ada:
  number 1 of 202610: 2 lines
  number 3 of 202611: 1 lines
revenue by month:
  202610        46.40
  202611        65.40
in 202611 by category:
  books         54.90
  tea           10.50
after a return, in all:
                86.90
";
    assert_eq!(output(shop::run), expected);
}

/// Each task is completed once, some after a retry. The task that always fails is abandoned.
#[test]
fn each_task_is_done_once() {
    let expected = "\
30 tasks, 3 workers: 29 done in 38 attempts
task 13 was given up after 3 attempts
";
    assert_eq!(output(task_queue::run), expected);
}

/// The time series can be summed over any interval.
#[test]
fn time_series_are_summed_by_any_interval() {
    let expected = "\
attic, all           count  144, sum   5184, least   0, greatest  72
attic, 10:30 to 14   count   21, sum    111, least   0, greatest  11
attic, day two       nothing
both                 count  288, sum   6912, least   0, greatest  72
attic,  0 to 8       count   48, sum   2328, least  25, greatest  72
attic,  8 to 16      count   48, sum    576, least   0, greatest  24
attic, 16 to 24      count   48, sum   2280, least  24, greatest  71
cellar,  0 to 8      count   48, sum    576, least  12, greatest  12
cellar,  8 to 16     count   48, sum    576, least  12, greatest  12
cellar, 16 to 24     count   48, sum    576, least  12, greatest  12
";
    assert_eq!(output(time_series::run), expected);
}
