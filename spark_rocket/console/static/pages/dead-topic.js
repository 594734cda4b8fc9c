// Dead letters of Spark queries in a topic.
import { topicPath } from "../dom.js";
import { linkButton } from "../parts.js";
import { areSent, letters, topicColumns } from "./dead-letters.js";

export default function deadTopic(view) {
  const topic = view.argument;
  letters(view, {
    title: `Dead letters in ${topic}`, sub: "Messages that a Spark query could not decode.", topic, resend: `/api/dead-letter-topics/${encodeURIComponent(topic)}/resend`,
    actions: [linkButton("Topic", topicPath(topic))], columns: topicColumns, empty: "This topic has no messages.",
    explain: (messages) => `${areSent(messages)} to ${[...new Set(messages.map((m) => m.origin?.topic ?? "an unknown topic"))].join(", ")}, for all of its readers. A query that still cannot decode them writes them here again.`,
  });
}
