//! Requests from outside (a gateway session, the command line, a workload) and their answers, by API.

use crate::msg::api::*;

/// Chosen by the requester and repeated in the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// An operation of one API, for one node.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: RequestId,
    pub op: Op,
}

impl Request {
    pub fn new(id: RequestId, op: impl Into<Op>) -> Request {
        Request { id, op: op.into() }
    }
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub id: RequestId,
    pub result: Outcome,
}

impl Reply {
    pub fn new(id: RequestId, result: impl Into<Outcome>) -> Reply {
        Reply { id, result: result.into() }
    }
}

/// An operation of an API, with its reply and error types.
pub trait Operation: Into<Op> {
    type Reply: std::fmt::Debug;
    type Error: std::error::Error;
    /// The result of an operation of this API; `None` for another API's outcome.
    fn result(outcome: Outcome) -> Option<Result<Self::Reply, Self::Error>>;
}

macro_rules! requests {
    ($($(#[$m:meta])* $api:ident($module:ident)),* $(,)?) => {
        /// One operation of any API. A node answers [`Op::not_served`] to an API that it does not serve.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum Op {
            $($(#[$m])* $api($module::Op)),*
        }

        impl Op {
            /// The answer of a node that does not serve this API.
            pub fn not_served(&self) -> Outcome {
                match self {
                    $(Op::$api(_) => Outcome::$api(Err($module::Error::NotServed))),*
                }
            }
            /// The answer of a node that already has `limit` pending requests.
            pub fn busy(&self, limit: u32) -> Outcome {
                match self {
                    $(Op::$api(_) => Outcome::$api(Err($module::Error::Busy { limit }))),*
                }
            }
        }

        /// The result of an operation, by API.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Outcome {
            $($api(Result<$module::Reply, $module::Error>)),*
        }

        impl Outcome {
            pub fn is_ok(&self) -> bool {
                match self {
                    $(Outcome::$api(result) => result.is_ok()),*
                }
            }
            pub fn error(&self) -> Option<&dyn std::error::Error> {
                match self {
                    $(Outcome::$api(result) => result.as_ref().err().map(|e| e as &dyn std::error::Error)),*
                }
            }
        }

        $(
            impl From<$module::Op> for Op {
                fn from(op: $module::Op) -> Op {
                    Op::$api(op)
                }
            }
            impl From<Result<$module::Reply, $module::Error>> for Outcome {
                fn from(result: Result<$module::Reply, $module::Error>) -> Outcome {
                    Outcome::$api(result)
                }
            }
            impl Operation for $module::Op {
                type Reply = $module::Reply;
                type Error = $module::Error;
                fn result(outcome: Outcome) -> Option<Result<$module::Reply, $module::Error>> {
                    match outcome {
                        Outcome::$api(result) => Some(result),
                        #[allow(unreachable_patterns, reason = "a single API has no other")]
                        _ => None,
                    }
                }
            }
        )*
    };
}

crate::msg::apis!(requests);

// Replies are moved from queue to queue: what is rare and long is boxed.
const _: () = assert!(size_of::<Reply>() <= 96);
