//! Counters, declared where they count, with their exported names.

/// Declares a struct of counters and `all`, which lists them by name. The name is the field's, or the one after `as`;
/// `as _` leaves a counter out.
#[macro_export]
macro_rules! counters {
    ($(#[$doc:meta])* $vis:vis struct $of:ident { $($(#[$m:meta])* $name:ident $(as $export:tt)?),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $of { $($(#[$m])* pub $name: u64),* }
        impl $of {
            /// Every exported counter with its name.
            $vis fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                let all = [$(($crate::counter_name!($name $($export)?), self.$name)),*];
                all.into_iter().filter(|(name, _)| !name.is_empty())
            }
        }
    };
}

/// The name of a counter that [`counters!`] exports.
#[doc(hidden)]
#[macro_export]
macro_rules! counter_name {
    ($name:ident) => {
        stringify!($name)
    };
    ($name:ident _) => {
        ""
    };
    ($name:ident $export:literal) => {
        $export
    };
}

#[cfg(test)]
mod tests {
    counters! {
        struct Three { sent, came as _, full as "drop_full" }
    }

    #[test]
    fn counters_are_listed_in_order_under_their_names() {
        let c = Three { sent: 1, came: 2, full: 3 };
        assert_eq!(c.all().collect::<Vec<_>>(), [("sent", 1), ("drop_full", 3)]);
    }
}
