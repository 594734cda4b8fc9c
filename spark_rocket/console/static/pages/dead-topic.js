// Dead letters of Spark queries in a topic.
import { topicPath } from "../dom.js";
import { count } from "../format.js";
import { linkButton } from "../parts.js";
import { letters, topicColumns } from "./dead-letters.js";
import { sentences, tr } from "../language.js";

export default function deadTopic(view) {
  const topic = view.argument;
  letters(view, {
    title: tr`Dead letters in ${topic}`, sub: tr`Messages that a Spark query could not decode.`, topic, resend: `/api/dead-letter-topics/${encodeURIComponent(topic)}/resend`,
    actions: [linkButton(tr`Topic`, topicPath(topic))], columns: topicColumns, empty: tr`This topic has no messages.`,
    explain: (messages) => {
      const topics = [...new Set(messages.map((m) => m.origin?.topic ?? tr`an unknown topic`))].join(", ");
      const sent = messages.length === 1 ? tr`1 message is sent to ${topics}, for all of its readers.` : tr`${count(messages.length)} messages are sent to ${topics}, for all of its readers.`;
      return sentences(sent, tr`A query that still cannot decode them writes them here again.`);
    },
    resent: (sent, all) => tr`Resent ${sent} of ${all} to the origin.`,
  });
}
